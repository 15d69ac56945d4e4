// Figure 0.1 with sliders: the operator T_2 on a world of two stalls, solved and simulated in the page.
// Every `<div data-live="fair">` becomes one. Without a script it stays as it is: the figure of chapter 0.

// ---- the model and the operator: arrays as in jmdp_lib, with two outcomes for every state --------------

// The fair of chapter 0. T_2 reads only the first two moments of the sky, and a coin of -1 and +1 has those of a normal law.
function fair({ gamma, shock }) {
  const rewards = [[-1, 1].map((sky) => [12 + 3 * shock * sky, 10 + 2 * shock * sky])]; // (S, K, A)
  return { prob: 0.5, rewards, nextStates: [[[0, 0], [0, 0]]], policy: [[0.5, 0.5]], gamma };
}

// P(outcome k of one action, outcome l of another), (K, K). Outcome 1 has probability `prob` for each.
// Coupling 1: one draw for both; 0: independent draws; -1: antithetic draws; mixtures of these in between.
function jointLaw(prob, coupling) {
  const extreme = coupling > 0 ? prob : Math.max(0, 2 * prob - 1);
  const both = (1 - Math.abs(coupling)) * prob * prob + Math.abs(coupling) * extreme;
  return [[1 - 2 * prob + both, prob - both], [prob - both, both]];
}

const total = (n, term) => Array.from({ length: n }, (_, k) => term(k)).reduce((sum, x) => sum + x, 0);
const table = (n, m, entry) => Array.from({ length: n }, (_, i) => Array.from({ length: m }, (_, j) => entry(i, j)));

// One sweep, equations (13) to (18): mean (X,) and second (X, X) over state-actions x = s A + a.
function applyT2(model, coupling, mean, second) {
  const { prob, rewards, nextStates, policy, gamma } = model;
  const [S, A] = [policy.length, policy[0].length];
  const at = (s, a) => s * A + a;
  const value = policy.map((pi, s) => total(A, (a) => pi[a] * mean[at(s, a)]));
  const oneBranch = policy.map((pi, s) => total(A, (a) => pi[a] * second[at(s, a)][at(s, a)]));
  const twoBranches = table(S, S, (s, t) =>
    total(A, (a) => total(A, (b) => policy[s][a] * policy[t][b] * second[at(s, a)][at(t, b)])));
  const shared = jointLaw(prob, coupling);
  const apart = jointLaw(prob, 0);
  const same = jointLaw(prob, 1);
  const backup = (s, a, t, b) => { // E[(R + gamma Z(X')) (R~ + gamma Z(Y'))]
    const one = s === t && a === b;
    const law = one ? same : s === t ? shared : apart;
    const ahead = (i, j) => (one ? oneBranch[i] : twoBranches[i][j]);
    return total(2, (k) => total(2, (l) => {
      const [r, i] = [rewards[s][k][a], nextStates[s][k][a]];
      const [q, j] = [rewards[t][l][b], nextStates[t][l][b]];
      return law[k][l] * (r * q + gamma * (r * value[j] + q * value[i]) + gamma ** 2 * ahead(i, j));
    }));
  };
  const chance = [1 - prob, prob];
  const X = S * A;
  const [state, action] = [(x) => Math.floor(x / A), (x) => x % A];
  return {
    mean: Array.from({ length: X }, (_, x) => total(2, (k) =>
      chance[k] * (rewards[state(x)][k][action(x)] + gamma * value[nextStates[state(x)][k][action(x)]]))),
    second: table(X, X, (x, y) => backup(state(x), action(x), state(y), action(y))),
  };
}

// The fixed point, to 1e-12 of the largest second moment, and what it says about the gap of x against y.
function evaluate(model, coupling, x, y) {
  const X = model.policy.length * model.policy[0].length;
  let moments = { mean: Array(X).fill(0), second: table(X, X, () => 0) };
  for (let change = Infinity, sweeps = 0; change > 1e-12 && sweeps < 10000; sweeps++) {
    const next = applyT2(model, coupling, moments.mean, moments.second);
    const off = table(X, X, (i, j) => Math.abs(next.second[i][j] - moments.second[i][j])).flat();
    change = Math.max(...off) / Math.max(1, ...next.second.flat());
    moments = next;
  }
  const covariance = (i, j) => moments.second[i][j] - moments.mean[i] * moments.mean[j];
  const gapMean = moments.mean[x] - moments.mean[y];
  const gapVariance = covariance(x, x) + covariance(y, y) - 2 * covariance(x, y);
  const spread = Math.sqrt(covariance(x, x) * covariance(y, y));
  return {
    means: [moments.mean[x], moments.mean[y]],
    deviations: [x, y].map((i) => Math.sqrt(Math.max(0, covariance(i, i)))),
    gapMean,
    gapVariance,
    correlation: spread > 1e-9 ? covariance(x, y) / spread : NaN,
    bound: gapMean > 0 ? gapVariance / (gapVariance + gapMean ** 2) : 1,
  };
}

// ---- pairs of branches, for the picture: always the same random numbers, so that the cloud moves smoothly ----

const PAIRS = 3000;

function uniformStream(seed) { // mulberry32
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function simulate({ gamma, shock, coupling }) {
  const uniform = uniformStream(7);
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const own = Math.sqrt(1 - coupling ** 2);
  const steps = gamma < 0.01 ? 1 : Math.ceil(Math.log(1e-3) / Math.log(gamma));
  return Array.from({ length: PAIRS }, () => {
    const returns = [0, 0];
    let chosen = [0, 1]; // ice cream in the first branch, the other thing in the second
    for (let t = 0, weight = 1; t < steps; t++, weight *= gamma) {
      const sky = normal();
      const takings = [12 + 3 * shock * sky, 10 + 2 * shock * (coupling * sky + own * normal())];
      returns[0] += weight * takings[chosen[0]];
      returns[1] += weight * takings[chosen[1]];
      const coins = [uniform() < 0.5 ? 0 : 1, uniform() < 0.5 ? 0 : 1];
      chosen = chosen[0] === chosen[1] ? [coins[0], coins[0]] : coins; // merged branches stay merged
    }
    return returns;
  });
}

// ---- the picture ----------------------------------------------------------------------------------------

const [BLUE, ORANGE, GREY, INK] = ["#0072B2", "#D55E00", "#c4c4c4", "#333"];

function brush(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.font = "12px sans-serif";
  ctx.lineWidth = 1;
  return { ctx, width, height };
}

function histogram(values, low, high, bins) {
  const counts = Array(bins).fill(0);
  for (const x of values) {
    const k = Math.floor(((x - low) / (high - low)) * bins);
    if (k >= 0 && k < bins) counts[k]++;
  }
  return counts;
}

function ticks(low, high) {
  const raw = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, k) => (first + k) * step);
}

const shown = (x) => String(Number(x.toPrecision(6))).replace("-", "\u2212");

// The two returns of every pair, between the laws of each alone.
function drawCloud(canvas, pairs, [low, high]) {
  const { ctx, width, height } = brush(canvas);
  const [left, top, right, bottom] = [48, 34, width - 34, height - 40];
  const px = (x) => left + ((x - low) / (high - low)) * (right - left);
  const py = (y) => bottom - ((y - low) / (high - low)) * (bottom - top);
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, right - left, bottom - top);
  ctx.clip();
  ctx.globalAlpha = 0.35;
  for (const [x, y] of pairs) {
    ctx.fillStyle = x < y ? ORANGE : BLUE;
    ctx.fillRect(px(x) - 1, py(y) - 1, 2.4, 2.4);
  }
  ctx.restore();
  ctx.strokeStyle = INK;
  ctx.beginPath();
  ctx.moveTo(left, bottom);
  ctx.lineTo(right, top);
  ctx.stroke();
  ctx.strokeRect(left, top, right - left, bottom - top);
  ctx.fillStyle = GREY;
  const bins = 40;
  const tallest = (PAIRS * 6) / bins;
  histogram(pairs.map((z) => z[0]), low, high, bins).forEach((n, k) => {
    const h = Math.min(1, n / tallest) * (top - 2);
    ctx.fillRect(left + (k * (right - left)) / bins, top - h, (right - left) / bins + 0.5, h);
  });
  histogram(pairs.map((z) => z[1]), low, high, bins).forEach((n, k) => {
    const h = Math.min(1, n / tallest) * (width - right - 2);
    ctx.fillRect(right, bottom - ((k + 1) * (bottom - top)) / bins, h, (bottom - top) / bins + 0.5);
  });
  ctx.fillStyle = INK;
  ctx.textAlign = "center";
  for (const x of ticks(low, high)) {
    ctx.fillText(shown(x), px(x), bottom + 15);
    ctx.fillText(shown(x), left - 18, py(x) + 4);
  }
  ctx.fillText("return, ice cream first", (left + right) / 2, bottom + 33);
  ctx.translate(12, (top + bottom) / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.fillText("return, the other thing first", 0, 0);
}

// The law of the gap; orange where ice cream earned less.
function drawGaps(canvas, gaps, reach) {
  const { ctx, width, height } = brush(canvas);
  const [left, top, right, bottom] = [10, 34, width - 10, height - 40];
  const bins = 60; // an even number: zero is an edge
  const counts = histogram(gaps, -reach, reach, bins);
  const tallest = Math.max(...counts, PAIRS / 12);
  const px = (x) => left + ((x + reach) / (2 * reach)) * (right - left);
  counts.forEach((n, k) => {
    ctx.fillStyle = k < bins / 2 ? ORANGE : BLUE;
    const h = (n / tallest) * (bottom - top);
    ctx.fillRect(left + (k * (right - left)) / bins, bottom - h, (right - left) / bins - 0.5, h);
  });
  ctx.strokeStyle = ctx.fillStyle = INK;
  ctx.beginPath();
  ctx.moveTo(left, bottom);
  ctx.lineTo(right, bottom);
  ctx.moveTo(px(0), bottom);
  ctx.lineTo(px(0), top);
  ctx.stroke();
  ctx.textAlign = "center";
  for (const x of ticks(-reach, reach)) ctx.fillText(shown(x), px(x), bottom + 15);
  ctx.fillText("gap G: ice cream minus the other thing", (left + right) / 2, bottom + 33);
}

// ---- the sliders and the numbers ------------------------------------------------------------------------

const SLIDERS = {
  coupling: { text: "Coupling", min: -1, max: 1, step: 0.05, value: 1 },
  gamma: { text: "Discount factor \u03b3", min: 0, max: 0.9, step: 0.05, value: 0.5 },
  shock: { text: "Size of the shock", min: 0, max: 1.5, step: 0.05, value: 1 },
};
const NUMBERS = {
  correlation: "correlation of the two returns",
  gapMean: "mean of the gap",
  gapVariance: "variance of the gap",
  bound: "bound on P(G \u2264 0)",
  worse: `P(G < 0) in ${PAIRS.toLocaleString("en")} simulated pairs`,
};
const WORLDS = { lemonade: 1, nuts: 0, umbrellas: -1 };

function couplingName(coupling) {
  if (Math.abs(coupling) === 1) return coupling > 0 ? "one shock" : "antithetic";
  if (coupling === 0) return "independent";
  return coupling > 0 ? "partly shared" : "partly opposed";
}

function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

function slider(name, { text, ...range }, id) {
  const input = element("input", { type: "range", id, name, ...range });
  const output = element("output", { for: id });
  return { input, output, row: element("div", { class: "live-slider" }, element("label", { for: id }, text), output, input) };
}

function live(place, number) {
  const rows = Object.entries(SLIDERS).map(([name, range]) => [name, slider(name, range, `live-${number}-${name}`)]);
  const controls = Object.fromEntries(rows);
  const [cloud, gaps] = ["cloud", "gaps"].map((kind) => element("canvas", { class: `live-${kind}`, role: "img" }));
  const cells = Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, element("data", { "data-number": name })]));
  const facts = Object.entries(NUMBERS).map(([name, text]) => element("div", {}, element("dt", {}, text), element("dd", {}, cells[name])));
  const status = element("p", { class: "live-status", role: "status", "aria-live": "polite" });
  const buttons = Object.keys(WORLDS).map((world) => element("button", { type: "button", "data-world": world }, world));
  let settings = {};
  let numbers = {};

  function update() {
    settings = Object.fromEntries(rows.map(([name, { input }]) => [name, Number(input.value)]));
    const pairs = simulate(settings);
    const differences = pairs.map(([x, y]) => x - y);
    numbers = evaluate(fair(settings), settings.coupling, 0, 1);
    numbers.worse = differences.filter((g) => g < 0).length / PAIRS;
    const widest = evaluate(fair({ ...settings, shock: SLIDERS.shock.max }), -1, 0, 1); // so that the axes do not follow the slider
    const centre = (widest.means[0] + widest.means[1]) / 2;
    const half = 3.2 * Math.max(...widest.deviations);
    drawCloud(cloud, pairs, [centre - half, centre + half]);
    drawGaps(gaps, differences, 3.2 * Math.sqrt(widest.gapVariance));
    describe();
  }

  function describe() {
    for (const [name, cell] of Object.entries(cells)) {
      cell.value = numbers[name];
      cell.textContent = Number.isNaN(numbers[name]) ? "none: nothing is random" : shown(Number(numbers[name].toFixed(3)));
    }
    for (const [name, { input, output }] of rows) {
      const said = name === "coupling" ? `${couplingName(settings.coupling)}, ${shown(settings.coupling)}` : shown(settings[name]);
      output.value = said;
      input.setAttribute("aria-valuetext", said);
    }
    for (const button of buttons) button.setAttribute("aria-pressed", WORLDS[button.dataset.world] === settings.coupling);
    cloud.setAttribute("aria-label", `A cloud of pairs of returns, correlation ${cells.correlation.textContent}`);
    gaps.setAttribute("aria-label", `The law of the gap: mean ${cells.gapMean.textContent}, variance ${cells.gapVariance.textContent}`);
  }

  function say() { // once a slider is let go, not at every step
    status.textContent = `Shocks: ${couplingName(settings.coupling)}; gap variance ${cells.gapVariance.textContent}, ` +
      `ice cream earns less in ${Math.round(100 * numbers.worse)}% of pairs`;
  }

  for (const [, { input }] of rows) {
    input.addEventListener("input", update);
    input.addEventListener("change", say);
  }
  for (const button of buttons) {
    button.addEventListener("click", () => {
      controls.coupling.input.value = WORLDS[button.dataset.world];
      update();
      say();
    });
  }
  const choice = element("div", { class: "live-worlds", role: "group", "aria-label": "Three worlds of chapter 0" }, "Ice cream or \u2026 ", ...buttons);
  const figure = element("div", { class: "live", role: "group", "aria-label": "A figure with sliders" }, choice,
    element("div", { class: "live-sliders" }, ...rows.map(([, { row }]) => row)),
    element("div", { class: "live-panels" }, cloud, gaps), element("dl", {}, ...facts), status);
  for (const still of place.children) still.hidden = true;
  place.prepend(figure);
  new ResizeObserver(update).observe(cloud);
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("[data-live=fair]").forEach(live));
