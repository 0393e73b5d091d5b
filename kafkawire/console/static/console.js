// Keys, theme, health and plots. Pages work without it.
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

  // The health on top of the page. When the broker or the console answers again, what the page
  // shows is read again, in its place.
  const state = document.getElementById("state");
  const gone = document.getElementById("gone");
  let down = !gone.hidden || document.querySelector("[data-status='502']") !== null;

  function report(brief, kind, sentence) {
    state.hidden = false;
    state.textContent = brief;
    state.className = `state ${kind}`;
    gone.hidden = !sentence;
    if (gone.textContent !== sentence) gone.textContent = sentence;
    if (down && !sentence) {
      htmx.ajax("GET", location.href, { target: "#content", select: "#content", swap: "outerHTML" });
    }
    down = Boolean(sentence);
  }

  async function check() {
    if (document.hidden) return;
    let answer;
    try {
      answer = await fetch("/health");
    } catch {
      report("The console does not answer", "broken", "The console does not answer. This page is as it was.");
      return;
    }
    if (!answer.ok || answer.redirected) return;
    const { state: kind, brief, failure } = await answer.json();
    report(brief, kind, failure ? `The broker does not answer: ${failure}.` : "");
  }

  setInterval(check, 5000);
  document.addEventListener("visibilitychange", check);

  let samples = null;
  const plots = () => document.querySelectorAll(".plot");

  // A canvas takes no variables of style sheets.
  function color(text) {
    const probe = root.appendChild(document.createElement("i"));
    probe.style.color = text;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function draw() {
    if (!samples || samples.at.length < 2 || typeof uPlot === "undefined") return;
    const short = new Intl.NumberFormat("en", { notation: "compact" });
    const axis = { stroke: color("var(--text)"), grid: { stroke: color("var(--line)"), width: 1 } };
    const stroke = color("var(--accent)"), fill = color("color-mix(in srgb, var(--accent) 15%, transparent)");
    for (const place of plots()) {
      place.replaceChildren();
      new uPlot({
        width: place.clientWidth, height: 160, legend: { show: false }, cursor: { show: false },
        axes: [axis, { ...axis, values: (_, all) => all.map((each) => short.format(each)) }],
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        series: [{}, { stroke, fill, width: 2, points: { show: false } }],
      }, [samples.at, samples[place.dataset.series]], place);
    }
  }

  async function refresh() {
    if (document.hidden || !plots().length) return;
    try {
      const answer = await fetch("/samples");
      if (answer.ok) { samples = await answer.json(); draw(); }
    } catch { /* the page says that the broker or the console is gone */ }
  }

  refresh();
  setInterval(refresh, 10000);
  addEventListener("resize", draw);
})();
