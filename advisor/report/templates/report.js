"use strict";
// The what-if of a report. The same arithmetic as advisor.speculation.conversions: acceptance -> tokens per round;
// the round cost comes from the shipped curves. Nothing is loaded and nothing is sent.
const expit = (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));

function positions(theta, k, offsets) {
  const out = [];
  for (let i = 0; i < k; i++) {
    out.push(expit(theta + (offsets.length ? offsets[Math.min(i, offsets.length - 1)] : 0)));
  }
  return out;
}

function accepted(steps) {
  let reached = 1, sum = 0;
  for (const a of steps) { reached *= a; sum += reached; }
  return sum;
}

// Conditional acceptances at length k of a run that shows `rate` at length `at`.
function shape(rate, at, k, offsets) {
  if (rate <= 0 || rate >= 1) return new Array(k).fill(rate);
  let low = -30, high = 30;
  for (let i = 0; i < 60; i++) {
    const middle = 0.5 * (low + high);
    if (accepted(positions(middle, at, offsets)) < rate * at) low = middle; else high = middle;
  }
  return positions(0.5 * (low + high), k, offsets);
}

// Linear between the shipped rates; a row of one entry holds for all.
function between(row, rates, rate) {
  if (row.length === 1) return row[0];
  let j = 1;
  while (j < rates.length - 1 && rates[j] < rate) j++;
  const part = (rate - rates[j - 1]) / (rates[j] - rates[j - 1]);
  return row[j - 1] + part * (row[j] - row[j - 1]);
}

function answer(data, context, rate) {
  return data.lengths.map((k, i) => {
    const tokens = data.yields.length ? between(data.yields[i], data.rates, rate)
      : 1 + data.draft_share * accepted(shape(rate, data.reported_at, k, data.offsets));
    const speedup = tokens / between(context.cost[i], data.rates, rate);
    return { k, tokens, speedup, rate: 1000 / context.step_ms };
  });
}

const three = (x) => (x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2));

function start(form) {
  const data = JSON.parse(document.getElementById(form.dataset.curves).textContent);
  const acceptance = form.querySelector("[name=acceptance]");
  const length = form.querySelector("[name=length]");
  const context = form.querySelector("[name=context]");
  const body = form.querySelector("tbody");
  const output = form.querySelector("output");
  const rows = data.lengths.map(() => {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    row.append(head);
    const number = row.insertCell(), speed = row.insertCell(), bar = row.insertCell();
    number.className = speed.className = head.className = "n";
    bar.className = "bar";
    const fill = document.createElement("span");
    fill.className = "fill";
    bar.append(fill);
    return { row, head, number, speed, fill };
  });
  let exact = data.rate; // the slider stands at the nearest per cent until it is moved
  function update() {
    const rate = exact === null ? Number(acceptance.value) / 100 : exact;
    const chosen = data.lengths[Number(length.value)];
    const points = answer(data, data.contexts[Number(context.value)], rate);
    const top = Math.max(1, ...points.map((p) => p.speedup));
    points.forEach((p, i) => {
      const cell = rows[i];
      cell.head.textContent = String(p.k);
      cell.number.textContent = p.speedup.toFixed(2) + "x";
      cell.speed.textContent = three(p.speedup * p.rate);
      cell.fill.style.width = (100 * p.speedup / top).toFixed(1) + "%";
      cell.row.className = (p.speedup < 1 ? "loses" : "wins") + (p.k === chosen ? " chosen" : "");
    });
    const now = points.find((p) => p.k === chosen);
    const best = points.reduce((a, b) => (b.speedup > a.speedup ? b : a));
    form.querySelector("[data-show=acceptance]").textContent = acceptance.value + " %";
    form.querySelector("[data-show=length]").textContent = String(chosen);
    acceptance.setAttribute("aria-valuetext", acceptance.value + " percent");
    length.setAttribute("aria-valuetext", chosen + " tokens");
    const word = now.speedup >= 1.03 ? "faster" : now.speedup <= 0.97 ? "slower" : "about the same";
    output.textContent = now.speedup.toFixed(2) + "x, " + word + ": " + three(now.speedup * now.rate) + " tok/s instead of "
      + three(now.rate) + (best.speedup > 1 ? "; best k: " + best.k + " (" + best.speedup.toFixed(2) + "x)" : "; no k wins");
    output.dataset.speedup = String(now.speedup);
    output.dataset.tokens = String(now.tokens);
  }
  acceptance.addEventListener("input", () => { exact = null; });
  for (const input of [acceptance, length, context]) input.addEventListener("input", update);
  form.hidden = false;
  update();
}

for (const form of document.querySelectorAll("[data-curves]")) start(form);
addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll("details")) box.open = true;
});
