"use strict";
// Small helpers. Text always goes in as text nodes: nothing a model wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

function format(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(size >= 100 ? 1 : 3);
}
