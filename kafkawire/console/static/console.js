// Keys, theme and plots. Pages work without it.
(() => {
  "use strict";

  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    document.getElementById("search").focus();
  });

  const button = document.getElementById("theme");
  const root = document.documentElement;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
    draw();
  });

  let samples = null;
  const plots = [...document.querySelectorAll(".plot")];

  function draw() {
    if (!samples || typeof uPlot === "undefined") return;
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    for (const place of plots) {
      place.replaceChildren();
      const axis = { stroke: color("--text"), grid: { stroke: color("--line") } };
      new uPlot({
        width: place.clientWidth, height: 160, legend: { show: false }, axes: [axis, axis],
        series: [{}, { stroke: color("--accent"), width: 2 }],
      }, [samples.at, samples[place.dataset.series]], place);
    }
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      const answer = await fetch("/samples");
      if (answer.ok) { samples = await answer.json(); draw(); }
    } catch { /* the page says that the broker or the console is gone */ }
  }

  if (plots.length) {
    refresh();
    setInterval(refresh, 10000);
    addEventListener("resize", draw);
  }
})();
