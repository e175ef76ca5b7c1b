// Pages of 2 x 2 tiles over a bar, in the protocol of MiniWoB++, whose folder `core` the page's query names.
const core_folder = decodeURIComponent(location.search.slice(1));
document.write(`<link rel="stylesheet" href="${core_folder}/core.css"><script src="${core_folder}/core.js"><\/script>`);
document.write(`<style>
  #tiles { display: grid; grid-template-columns: 74px 74px; grid-auto-rows: 56px; gap: 4px; padding: 4px; }
  #tiles div { background: #bbb; }
  #bar { background: #bbb; border: 0; font-size: 14px; height: 30px; margin-left: 4px; width: 152px; }
</style>`);

const tiles = {
  right: null, // what is to be clicked next, for solutions
  all: () => [...document.querySelectorAll("#tiles div")],
  bar: () => document.getElementById("bar"),
  paint: (colors) => tiles.all().forEach((tile, i) => { tile.style.background = colors[i] || ""; }),
  // Waits for a click on `right`; one on another tile or, if `strict`, on the bar fails.
  expect: (right, then, strict = true) => {
    tiles.right = right;
    for (const each of [tiles.bar(), ...tiles.all()]) {
      each.onclick = each === right ? then : each === tiles.bar() || !strict ? null : () => core.endEpisode(-1);
    }
  },
};

window.onload = () => {
  document.body.innerHTML = `<div id="wrap"><div id="query"></div><div id="area" style="padding: 0">
    <div id="tiles"><div></div><div></div><div></div><div></div></div><button id="bar"></button></div></div>`;
  core.startEpisode();
};
