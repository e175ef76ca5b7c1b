// What every page here is made with. A page draws itself from its address: ?seed=7&lang=de; nothing else decides.
const query = new URLSearchParams(location.search);
let state = (Number(query.get("seed") ?? 0) * 2654435761 + 12345) >>> 0;

// Random numbers: mulberry32 (public domain, Tommy Ettinger).
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let z = Math.imul(state ^ (state >>> 15), state | 1);
  z = (z + Math.imul(z ^ (z >>> 7), z | 61)) ^ z;
  return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
}
for (let i = 0; i < 8; i++) random();
const whole = (low, high) => low + Math.floor(random() * (high - low + 1));
const chance = (share) => random() < share;
const pick = (list) => list[whole(0, list.length - 1)];
function some(list, count) {
  const rest = [...list];
  return Array.from({ length: Math.min(count, rest.length) }, () => rest.splice(whole(0, rest.length - 1), 1)[0]);
}

const drawn = pick(LANGUAGES);
const language = LANGUAGES.includes(query.get("lang")) ? query.get("lang") : drawn;
document.documentElement.lang = language;
document.documentElement.dir = language === "ar" ? "rtl" : "ltr";
const t = (concept) => WORDS[concept][language];
const people = t("people").split(",");
const number = (value, options) => new Intl.NumberFormat(language, options).format(value);
const money = (value) => number(value, { style: "currency", currency: pick(["EUR", "USD"]), maximumFractionDigits: 0 });
const day = (date, options = { day: "numeric", month: "short" }) =>
  new Intl.DateTimeFormat(language, { timeZone: "UTC", ...options }).format(date);
const someday = () => new Date(Date.UTC(2026, whole(0, 11), whole(1, 28)));

// An element: h("button.wide", {"aria-label": "Save"}, child, ...); `html` sets its markup.
function h(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "html") element.innerHTML = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity));
  return element;
}

const ICONS = {
  menu: "M3 6h18M3 12h18M3 18h18",
  search: "M10 4a6 6 0 1 0 0 12a6 6 0 1 0 0-12M15 15l6 6",
  home: "M3 12l9-8l9 8M6 10v10h12V10",
  settings: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 2v4M12 18v4M2 12h4M18 12h4M5 5l3 3M16 16l3 3M19 5l-3 3M8 16l-3 3",
  user: "M12 3a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M3 22c0-5 4-7 9-7s9 2 9 7",
  cart: "M2 3h4l3 12h10l3-9H7M10 18a1.5 1.5 0 1 0 0 3a1.5 1.5 0 1 0 0-3M18 18a1.5 1.5 0 1 0 0 3a1.5 1.5 0 1 0 0-3",
  heart: "M12 21C2 14 2 9 3 7c2-4 7-3 9 1c2-4 7-5 9-1c1 2 1 7-9 14Z!",
  star: "M12 2l3 7l7 .5l-5.5 4.8l2 7.2L12 17.5L5.5 21.5l2-7.2L2 9.5L9 9Z!",
  bell: "M5 18h14l-2-3v-5a5 5 0 0 0-10 0v5ZM10 21h4",
  mail: "M2 5h20v14H2ZM2 6l10 8l10-8",
  trash: "M3 6h18M9 6V3h6v3M5 6l1.5 16h11L19 6M10 10v8M14 10v8",
  edit: "M3 21l1-6L17 2l5 5L9 20Z",
  add: "M12 3v18M3 12h18",
  close: "M4 4l16 16M20 4L4 20",
  download: "M12 3v12M6 10l6 6l6-6M3 21h18",
  share: "M12 15V3M7 7l5-5l5 5M4 12v9h16v-9",
  lock: "M4 11h16v11H4ZM8 11V7a4 4 0 0 1 8 0v4",
  camera: "M2 7h5l2-3h6l2 3h5v13H2ZM12 9a4 4 0 1 0 0 8a4 4 0 1 0 0-8",
  calendar: "M3 5h18v16H3ZM3 10h18M8 2v5M16 2v5",
  play: "M6 3l15 9l-15 9Z!",
  pause: "M6 4h4v16H6ZM14 4h4v16h-4Z!",
  refresh: "M20 12a8 8 0 1 1-3-6.5M20 2v6h-6",
  help: "M8 8c0-6 9-5 8 0c-.5 3-4 3-4 7M12 19v2",
  filter: "M3 4h18l-7 9v7l-4-3v-4Z",
  phone: "M5 3h4l2 6l-3 2c1 3 3 5 6 6l2-3l6 2v4c-9 3-20-8-17-17Z",
  map: "M12 22C4 13 5 10 5 9a7 7 0 0 1 14 0c0 1 1 4-7 13ZM12 7a2 2 0 1 0 0 4a2 2 0 1 0 0-4",
  clock: "M12 2a10 10 0 1 0 0 20a10 10 0 1 0 0-20M12 6v6l5 3",
  chat: "M3 4h18v13H11l-6 5v-5H3Z",
};
const COLORS = { red: "#d92b2b", orange: "#f08a18", yellow: "#f2ce1b", green: "#2a9d4a", blue: "#2467d6", purple: "#8a3ab9" };
const TOOLS = Object.keys(ICONS);

// An exclamation mark at its end fills a drawing.
const drawing = (name) =>
  `<svg viewBox="0 0 24 24" fill="${ICONS[name].endsWith("!") ? "currentColor" : "none"}"><path d="${ICONS[name].replace("!", "")}"/></svg>`;
const icon = (name) => h("span.drawing", { html: drawing(name), "aria-hidden": "true" });
const iconButton = (name, label = t(name)) => h("button.icon", { "aria-label": label, html: drawing(name) });
const button = (concept, kind = "") => h(`button.text${kind}`, {}, t(concept));
const swatch = (color, on) =>
  h("button.swatch", { role: "radio", "aria-checked": String(on), "aria-label": t(color), style: `background:${COLORS[color]}` });
const swatches = (few, many) =>
  h("div.bar", { role: "radiogroup", "aria-label": t("color"), style: `justify-content:${pick(["start", "center", "end"])}` },
    some(Object.keys(COLORS), whole(few, many)).map((color, i) => swatch(color, i === 0)));
const field = (concept, type = "text") => h("label.field", {}, h("span", {}, t(concept)), h("input", { type, autocomplete: "off" }));
const check = (concept, on = chance(0.5), role = false) =>
  h("label.check", {}, h("input", { type: "checkbox", checked: on, role }), h("span", {}, t(concept)));
const slider = (concept) => h("input", { type: "range", "aria-label": t(concept), value: String(whole(0, 100)) });
const seek = () => h("div.bar", {}, h("input", { type: "search", "aria-label": t("search"), placeholder: t("search") }));
const pill = (concept, color) => h("span.pill", { style: `background:${COLORS[color]}` }, t(concept));
const picture = () =>
  h("span.picture", { style: `background:linear-gradient(${whole(0, 180)}deg,hsl(${whole(0, 359)} 45% 70%),hsl(${whole(0, 359)} 45% 45%))` });

// A bar with a title and icons; the icons that are left over stand in a bar at the bottom.
function frame(title, tools, ...content) {
  const wide = innerWidth >= 600;
  const [top, bottom] = [tools.slice(0, wide ? 6 : 2), tools.slice(wide ? 6 : 2, wide ? 11 : 7)];
  document.title = t(title);
  document.body.append(
    h("header", {}, chance(0.5) ? iconButton("menu") : [], h("h1", {}, t(title)), top.map((name) => iconButton(name))),
    h("main", {}, content),
  );
  if (bottom.length && (wide || chance(0.5))) document.body.append(h(wide ? "nav.side" : "nav.bottom", {}, bottom.map((name) => iconButton(name))));
}
const tools = (few, many, without = []) => some(TOOLS.filter((name) => !["menu", ...without].includes(name)), whole(few, many));

// The look of a page: light or dark, its accent, corners, letters and the way that icons stand.
const hue = whole(0, 359);
const look = query.get("look") ?? pick(["light", "light", "dark", "paper", "bold"]);
const styles = {
  light: { ground: "#fff", bar: "#f3f4f7", ink: "#20242b", line: "#d5d9e0", accent: `hsl(${hue} 65% 40%)`, on: "#fff" },
  dark: { ground: "#15181d", bar: "#23282f", ink: "#e9edf2", line: "#3a414b", accent: `hsl(${hue} 75% 68%)`, on: "#111" },
  paper: { ground: "#f6f0e4", bar: "#e6dcc6", ink: "#3a3023", line: "#cdbf9f", accent: `hsl(${hue} 45% 35%)`, on: "#fff" },
  bold: { ground: "#fff", bar: `hsl(${hue} 60% 38%)`, ink: "#1c1c1c", line: "#ccc", accent: `hsl(${(hue + 150) % 360} 70% 40%)`, on: "#fff" },
};
for (const [name, value] of Object.entries(styles[look] ?? styles.light)) document.documentElement.style.setProperty(`--${name}`, value);
document.documentElement.style.setProperty("--round", `${pick([0, 4, 8, 14])}px`);
document.documentElement.style.setProperty("--letters", pick(["sans-serif", "sans-serif", "serif"]));
document.documentElement.dataset.look = styles[look] ? look : "light";
document.documentElement.dataset.icons = pick(["plain", "outline", "tile", "disc"]);
