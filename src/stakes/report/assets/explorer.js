// The decision explorer: an editable table of costs, and all that follows from it.
"use strict";

const Explorer = (() => {
  const { byId, element, number, share, are } = Dom;
  const FLIPS_SHOWN = 25;

  function unpack(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (mark) => mark.charCodeAt(0));
    return new Kind(bytes.buffer);
  }

  function start(data) {
    const probs = unpack(data.probs, Float32Array);
    const labels = unpack(data.labels, Int32Array);
    const rows = unpack(data.rows, Int32Array);
    const { decisions, outcomes, unit } = data;
    const [D, C] = [decisions.length, outcomes.length];
    const amount = (value) => (unit ? `${number(value)} ${unit}` : number(value));
    const before = Decisions.decide(Decisions.expectedCosts(probs, data.costs), D);
    const listeners = [];
    const original = {};
    let flipped = [];
    let shown = FLIPS_SHOWN;
    let costs = data.costs.map((row) => row.slice());

    // Everything that follows from the costs as they stand.
    function follow() {
      const expected = Decisions.expectedCosts(probs, costs);
      const choice = Decisions.decide(expected, D);
      const claimed = Decisions.claimedCosts(expected, choice);
      const realised = Decisions.realisedCosts(choice, labels, costs);
      const state = { probs, labels, costs, choice, claimed, realised, amount, decisions, outcomes };
      const counts = Decisions.confusion(choice, labels, D, C);
      flipped = Decisions.flips(before, choice, labels, costs);
      shown = FLIPS_SHOWN;
      showTotals(state);
      cells(byId("counts"), counts);
      cells(byId("money"), Decisions.money(counts, costs));
      showFlips();
      byId("csv").value = Decisions.costsCsv(costs, decisions, outcomes, unit);
      byId("copied").textContent = "";
      const bad = document.querySelectorAll("#costs [aria-invalid]").length;
      byId("invalid").textContent = bad ? "Where a cost is no number, the last one that was is used." : "";
      for (const listener of listeners) listener(state);
    }

    function showTotals({ claimed, realised }) {
      const cases = labels.length;
      const total = Decisions.sum(realised);
      const kept = Decisions.sum(Decisions.realisedCosts(before, labels, costs));
      const edited = costs.some((row, d) => row.some((cost, c) => cost !== data.costs[d][c]));
      tile("total", total, edited);
      tile("per-hundred", (100 * total) / cases, edited);
      tile("claimed", (100 * Decisions.sum(claimed)) / cases, edited);
      byId("flipped").textContent = `${number(flipped.length)} of ${number(cases)}`;
      const change = flipped.length
        ? `${number(flipped.length)} of ${number(cases)} cases ${are(flipped.length)} decided differently. At these costs the decisions ` +
          `cost ${amount(total)}; the decisions taken for the original costs would have cost ${amount(kept)}.`
        : `All ${number(cases)} cases are decided as before. At these costs that is ${amount(total)}.`;
      byId("outcome").textContent = edited ? change : "These are the original costs. Change one to see what follows.";
      byId("reset").disabled = !edited && !document.querySelector("#costs [aria-invalid]");
    }

    // A number, and beside it what it was for the original costs, which are the first to be shown.
    function tile(id, value, edited) {
      original[id] ??= value;
      byId(id).textContent = amount(value);
      byId(`${id}-before`).textContent = edited ? `originally ${amount(original[id])}` : "";
    }

    // Fills a table of the page's own making: a body of D rows with C cells and a sum, and a row of sums.
    function cells(table, values) {
      const most = Math.max(...values.flat(), 0);
      const sums = values.map(Decisions.sum);
      values.forEach((row, d) => {
        const own = table.rows[d + 1].cells;
        row.forEach((value, c) => {
          own[c + 1].textContent = number(value);
          own[c + 1].className = `heat-${most > 0 && value > 0 ? Math.ceil((4 * value) / most) : 0}`;
        });
        own[C + 1].textContent = number(sums[d]);
      });
      const last = table.rows[D + 1].cells;
      outcomes.forEach((_, c) => (last[c + 1].textContent = number(Decisions.sum(values.map((row) => row[c])))));
      last[C + 1].textContent = number(Decisions.sum(sums));
    }

    function showFlips() {
      const body = flipped.slice(0, shown).map(({ index, outcome, from, to, was, now }) =>
        element("tr", {},
          element("th", { scope: "row" }, String(rows[index])),
          element("td", { class: "name" }, outcomes[outcome]),
          element("td", { class: "name" }, decisions[from]),
          element("td", { class: "name" }, decisions[to]),
          element("td", {}, number(was)),
          element("td", {}, number(now)),
          element("td", {}, (now > was ? "+" : "") + number(now - was))));
      byId("flips").tBodies[0].replaceChildren(...body);
      byId("flips-box").hidden = !flipped.length;
      byId("no-flips").hidden = flipped.length > 0;
      const rest = flipped.length - shown;
      byId("more-flips").hidden = rest <= 0;
      byId("more-flips").textContent = `Show ${number(Math.min(rest, 4 * FLIPS_SHOWN))} more of ${number(rest)}`;
    }

    const inputs = costs.map((row, d) =>
      row.map((_, c) => byId("costs").rows[d + 1].cells[c + 1].querySelector("input")));

    function set(d, c, value) {
      costs[d][c] = value;
      inputs[d][c].value = String(value);
      inputs[d][c].removeAttribute("aria-invalid");
      mark(d, c);
    }

    function mark(d, c) {
      inputs[d][c].classList.toggle("edited", costs[d][c] !== data.costs[d][c]);
    }

    function edited(d, c) {
      const value = inputs[d][c].valueAsNumber;
      const valid = Number.isFinite(value);
      if (valid) {
        inputs[d][c].removeAttribute("aria-invalid");
        costs[d][c] = value;
        mark(d, c);
      } else inputs[d][c].setAttribute("aria-invalid", "true");
      follow();
    }

    // Buttons that have done their work are no longer there to be focused on: what they changed is.
    const focusOn = (id) => byId(id).closest(".scroll").focus({ preventScroll: true });

    function reset() {
      data.costs.forEach((row, d) => row.forEach((cost, c) => set(d, c, cost)));
      follow();
      focusOn("costs");
    }

    async function copy() {
      const box = byId("csv");
      let done = true;
      try {
        await navigator.clipboard.writeText(box.value);
      } catch { // some browsers keep the clipboard from pages that are files
        byId("csv-box").open = true;
        box.select();
        done = document.execCommand("copy");
      }
      byId("copied").textContent = done ? "Copied." : "Copy it from the box below.";
    }

    inputs.forEach((row, d) => row.forEach((input, c) => input.addEventListener("input", () => edited(d, c))));
    byId("reset").addEventListener("click", reset);
    byId("copy").addEventListener("click", copy);
    byId("more-flips").addEventListener("click", () => {
      shown += 4 * FLIPS_SHOWN;
      showFlips();
      if (byId("more-flips").hidden) focusOn("flips");
    });
    return {
      listen: (listener) => listeners.push(listener),
      change: (d, c, value) => {
        set(d, c, value);
        follow();
      },
      follow,
    };
  }

  return { start };
})();
