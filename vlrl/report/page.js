// Starts the page.

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

const data = JSON.parse(byId("data").textContent);
showCurves(data.sections);
showGallery(data);
