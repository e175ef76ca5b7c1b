// Starts a report.

const data = JSON.parse(byId("data").textContent);
if (data.sections) makeCurves(byId("charts"), byId("smoothing"), byId("smoothing-value"))(data.sections);
showGallery(data);
