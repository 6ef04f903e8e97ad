// The explorer of amounts: the costs of too few and too many, their ratio as a slider, and all that follows.
"use strict";

(() => {
  const { byId, element, number, withUnit, unpack, sayOriginal, chart } = Dom;
  const ROWS_SHOWN = 12;
  const SCANNED = Array.from({ length: 99 }, (_, place) => (place + 1) / 100); // shares

  const data = JSON.parse(byId("data").textContent);
  const labels = unpack(data.labels, Float64Array);
  const rows = unpack(data.rows, Int32Array);
  const model = Amounts.problem(unpack(data.quantiles, Float32Array), data.range);
  const past = Amounts.problem(unpack(data.past, Float32Array), data.range, unpack(data.pastRows, Int32Array));
  // Costs are those entered, times one for each row where rows have their own.
  const [ofUnder, ofOver] = data.perRow ? data.perRow.map((text) => unpack(text, Float64Array)) : [[1], [1]];
  const [underInput, overInput, slider] = ["under", "over", "share"].map(byId);
  const amount = (cost) => withUnit(cost, data.unit, data.unitFirst);
  const percent = (value) => `${number(Number((100 * value).toPrecision(3)))} %`;
  const original = {};
  let costs = data.costs.slice();
  let shown = ROWS_SHOWN;
  let before;

  const shareOf = ([under, over]) => under / (under + over);
  const scaled = (values, cost) => Float64Array.from(values, (value) => value * cost);

  // What a problem's decisions come to at some costs.
  function outcome(given, [under, over]) {
    const [short, left] = [scaled(ofUnder, under), scaled(ofOver, over)];
    const { choice, claimed } = Amounts.decide(given, short, left);
    return { choice, claimed, realised: Amounts.realisedCosts(choice, labels, short, left) };
  }

  // The two costs at a share; their sum stays.
  function costsAt(at) {
    const sum = costs[0] + costs[1];
    return [at * sum, (1 - at) * sum];
  }

  // The costs per decision at each share, of the model and without one: they scale with the sum of the costs.
  const known = new Map();
  function perUnit(given, at) {
    const key = `${given === model} ${at}`;
    if (!known.has(key)) known.set(key, Amounts.mean(outcome(given, [at, 1 - at]).realised));
    return known.get(key);
  }

  const parts = Amounts.crossings((at) => perUnit(past, at) - perUnit(model, at), SCANNED);

  function follow() {
    const now = outcome(model, costs);
    before ??= now.choice;
    const edited = costs.some((cost, place) => cost !== data.costs[place]);
    const without = outcome(past, costs);
    const total = Amounts.sum(now.realised);
    const each = total / labels.length;
    tile("total", amount(total), edited);
    tile("per-decision", amount(each), edited);
    tile("claimed", amount(Amounts.mean(now.claimed)), edited);
    tile("decided", number(Amounts.mean(now.choice)), edited);
    tile("covered", percent(Amounts.coveredShare(now.choice, labels)), edited);
    tile("without", amount(Amounts.mean(without.realised)), edited);
    byId("share-value").textContent = data.perRow ? ratio() : `${percent(shareOf(costs))} (${ratio()})`;
    slider.value = 100 * shareOf(costs);
    slider.setAttribute("aria-valuetext", byId("share-value").textContent);
    byId("outcome").textContent = edited ? said(total, now.choice, without) :
      "These are the original costs. Change one, or move the slider, to see what follows.";
    sayOriginal(edited, "costs", `at the edited ones the decisions of this model cost ${amount(each)} each.`);
    byId("reset").disabled = !edited && !document.querySelector("#explorer [aria-invalid]");
    byId("break-even").textContent = breakEven();
    draw();
    showRows(now);
  }

  function ratio() {
    const [under, over] = costs;
    return over > 0 ? `${number(Number((under / over).toPrecision(3)))} : 1` : "too many cost nothing";
  }

  function said(total, choice, without) {
    const kept = Amounts.sum(Amounts.realisedCosts(before, labels, scaled(ofUnder, costs[0]), scaled(ofOver, costs[1])));
    const changed = choice.reduce((count, h, i) => count + (h !== before[i]), 0);
    const saved = Amounts.sum(without.realised) - total;
    const every = new Set(without.choice).size === 1 ? `deciding ${number(without.choice[0])} every time` : "the best decision of the past";
    return (
      `${number(changed)} of ${number(choice.length)} decisions change. They cost ${amount(total)} in all; those taken for the original costs ` +
      `would have cost ${amount(kept)}. That is ${amount(Math.abs(saved))} ${saved >= 0 ? "less" : "more"} than ${every}.`
    );
  }

  // Over which shares the model costs less than the same decision every time, in words.
  function breakEven() {
    const what = data.perRow ? "weights of too few" : "shares";
    const words = { 1: "the model costs less", 0: "the two cost the same", "-1": "the model costs more" };
    if (parts.length === 1) return `At all ${what} from 1 % to 99 %, ${words[parts[0].sign]}${parts[0].sign ? " than the same decision every time" : ""}.`;
    const ranges = parts.map(({ from, to, sign }) => `from ${percent(from)} to ${percent(to)} ${words[sign]}`);
    const points = parts.slice(1).map(({ from }) => percent(from)).join(", ");
    return `Against the same decision every time, by ${what}: ${ranges.join("; ")}. Break-even: ${points}.`;
  }

  function draw() {
    const sum = costs[0] + costs[1];
    const nearest = (at) => SCANNED[Math.min(98, Math.max(0, Math.round(at) - 1))];
    chart(byId("share-chart"), {
      from: 1, to: 99, mark: Math.min(99, Math.max(1, 100 * shareOf(costs))),
      value: (at) => sum * perUnit(model, nearest(at)), other: (at) => sum * perUnit(past, nearest(at)),
      xLabel: data.perRow ? "weight of too few against too many, %" : "share of outcomes that a decision should cover, %",
      yLabel: "cost per decision", description: byId("break-even").textContent,
    });
  }

  // A number, and beside it what it was for the original costs, which are the first to be shown.
  function tile(id, text, edited) {
    original[id] ??= text;
    byId(id).textContent = text;
    byId(`${id}-before`).textContent = edited ? `originally ${original[id]}` : "";
  }

  const heads = Array.from(byId("decisions").tHead.rows[0].cells, (cell) => cell.textContent);

  function showRows({ choice, realised }) {
    const was = Amounts.realisedCosts(before, labels, scaled(ofUnder, costs[0]), scaled(ofOver, costs[1]));
    const order = Array.from(choice.keys()).sort((a, b) => Math.abs(choice[b] - before[b]) - Math.abs(choice[a] - before[a]) || b - a);
    const name = (i) => data.ids?.[i] ?? data.times?.[i] ?? String(rows[i]);
    const body = order.slice(0, shown).map((i) =>
      element("tr", {}, element("th", { scope: "row" }, name(i)),
        ...[labels[i], before[i], choice[i], was[i], realised[i]].map((value, place) =>
          element("td", { "data-label": heads[place + 1] }, number(value)))));
    byId("decisions").tBodies[0].replaceChildren(...body);
    const rest = order.length - shown;
    byId("more-rows").hidden = rest <= 0;
    byId("more-rows").textContent = `Show ${number(Math.min(rest, 4 * ROWS_SHOWN))} more of ${number(rest)}`;
  }

  function set(values) {
    costs = values;
    [underInput, overInput].forEach((input, place) => {
      input.value = String(Number(costs[place].toPrecision(6)));
      input.removeAttribute("aria-invalid");
      mark(input, place);
    });
    byId("invalid").textContent = "";
    shown = ROWS_SHOWN;
    follow();
  }

  const mark = (input, place) => input.classList.toggle("edited", costs[place] !== data.costs[place]);

  // Both have to be costs, and one of them above 0; else the last ones that were are kept.
  function edited() {
    const values = [underInput, overInput].map((input) => input.valueAsNumber);
    const bad = values.map((value) => !(Number.isFinite(value) && value >= 0));
    const nothing = !bad.some(Boolean) && values[0] + values[1] === 0;
    [underInput, overInput].forEach((input, place) => {
      if (bad[place] || nothing) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    });
    const valid = !bad.some(Boolean) && !nothing;
    byId("invalid").textContent = valid ? "" : nothing
      ? "One of the two has to be above 0: the last costs that were are used."
      : "A cost is a number of 0 or more: the last costs that were are used.";
    if (valid) costs = values;
    [underInput, overInput].forEach(mark);
    follow();
  }

  underInput.addEventListener("input", edited);
  overInput.addEventListener("input", edited);
  slider.addEventListener("input", () => set(costsAt(Number((slider.valueAsNumber / 100).toPrecision(3)))));
  byId("reset").addEventListener("click", () => {
    set(data.costs.slice());
    underInput.focus();
  });
  byId("more-rows").addEventListener("click", () => {
    shown += 4 * ROWS_SHOWN;
    showRows(outcome(model, costs));
    if (byId("more-rows").hidden) byId("decisions").closest(".scroll").focus({ preventScroll: true });
  });
  byId("explorer-body").hidden = false;
  follow();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar that comes and goes
    width = window.innerWidth;
    draw();
  });
})();
