// Keys of the whole page, and the switch between light and dark.

const TYPING = "input, select, textarea, [role=slider]";

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

// actions: key -> function of the event; one that returns false leaves the key to the browser.
function onKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target.matches(TYPING)) event.target.blur();
    if (event.target.closest(TYPING) || !(event.key in actions)) return;
    if (actions[event.key](event) !== false) event.preventDefault();
  });
}

function searchWith(field) {
  field.focus();
  field.select();
}
