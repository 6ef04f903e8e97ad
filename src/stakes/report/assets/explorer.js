// The decision explorer: an editable table of costs, and all that follows from it.
"use strict";

const Explorer = (() => {
  const { byId, element, number, withUnit, are, unpack } = Dom;
  const FLIPS_SHOWN = 25;

  function start(data) {
    const probs = unpack(data.probs, Float32Array);
    const labels = unpack(data.labels, Int32Array);
    const rows = unpack(data.rows, Int32Array);
    const { decisions, outcomes, unit, noun } = data;
    const [D, C] = [decisions.length, outcomes.length];
    const isCost = noun === "cost";
    const nouns = isCost ? "costs" : "utilities";
    // All is computed as costs; a utility is shown again as what it is.
    const sign = isCost ? 1 : -1;
    const originalCosts = data.stated.map((row) => row.map((value) => sign * value));
    const amount = (cost) => withUnit(sign * cost, unit, data.unitFirst);
    const before = Decisions.decide(Decisions.expectedCosts(probs, originalCosts), D);
    const listeners = [];
    const original = {};
    let flipped = [];
    let shown = FLIPS_SHOWN;
    let costs = originalCosts.map((row) => row.slice());

    // Everything that follows from the costs as they stand.
    function follow() {
      const expected = Decisions.expectedCosts(probs, costs);
      const choice = Decisions.decide(expected, D);
      const claimed = Decisions.claimedCosts(expected, choice);
      const realised = Decisions.realisedCosts(choice, labels, costs);
      const state = { probs, labels, costs, choice, claimed, realised, amount, decisions, outcomes, noun, sign };
      const counts = Decisions.confusion(choice, labels, D, C);
      flipped = Decisions.flips(before, choice, labels, costs);
      shown = FLIPS_SHOWN;
      showTotals(state);
      cells(byId("counts"), counts);
      cells(byId("money"), Decisions.money(counts, costs).map((row) => row.map((cost) => sign * cost)));
      showFlips();
      byId("csv").value = Decisions.costsCsv(stated(), decisions, outcomes, unit, noun);
      byId("copied").textContent = "";
      const bad = document.querySelectorAll("#costs [aria-invalid]").length;
      byId("invalid").textContent = bad ? `Where a ${noun} is no number, the last one that was is used.` : "";
      for (const listener of listeners) listener(state);
    }

    function showTotals({ claimed, realised }) {
      const cases = labels.length;
      const total = Decisions.sum(realised);
      const kept = Decisions.sum(Decisions.realisedCosts(before, labels, costs));
      const edited = costs.some((row, d) => row.some((cost, c) => cost !== originalCosts[d][c]));
      tile("total", total, edited);
      tile("per-decision", total / cases, edited);
      tile("claimed", Decisions.sum(claimed) / cases, edited);
      byId("flipped").textContent = `${number(flipped.length)} of ${number(cases)}`;
      const change = flipped.length
        ? `${number(flipped.length)} of ${number(cases)} cases ${are(flipped.length)} decided differently. At these ${nouns} the decisions ` +
          `${isCost ? "cost" : "are worth"} ${amount(total)}; the decisions taken for the original ${nouns} would have ` +
          `${isCost ? "cost" : "been worth"} ${amount(kept)}.`
        : `All ${number(cases)} cases are decided as before. At these ${nouns} that is ${amount(total)}.`;
      byId("outcome").textContent = edited ? change : `These are the original ${nouns}. Change one to see what follows.`;
      const now = `at the edited ones the decisions of this model ${isCost ? "cost" : "are worth"} ${amount(total / cases)} each.`;
      Dom.sayOriginal(edited, nouns, now);
      byId("reset").disabled = !edited && !document.querySelector("#costs [aria-invalid]");
    }

    // The table as the user states it.
    const stated = () => costs.map((row) => row.map((cost) => (cost === 0 ? 0 : sign * cost)));

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

    const heads = Array.from(byId("flips").tHead.rows[0].cells, (cell) => cell.textContent);

    function showFlips() {
      const body = flipped.slice(0, shown).map(({ index, outcome, from, to, was, now }) =>
        element("tr", {},
          element("th", { scope: "row" }, data.ids ? data.ids[index] : String(rows[index])),
          ...[outcomes[outcome], decisions[from], decisions[to]].map((text, place) =>
            element("td", { class: "name", "data-label": heads[place + 1] }, text)),
          element("td", { "data-label": heads[4] }, number(sign * was)),
          element("td", { "data-label": heads[5] }, number(sign * now)),
          element("td", { "data-label": heads[6] }, (sign * (now - was) > 0 ? "+" : "") + number(sign * (now - was)))));
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
      inputs[d][c].value = String(value === 0 ? 0 : sign * value);
      inputs[d][c].removeAttribute("aria-invalid");
      mark(d, c);
    }

    function mark(d, c) {
      inputs[d][c].classList.toggle("edited", costs[d][c] !== originalCosts[d][c]);
    }

    function edited(d, c) {
      const value = inputs[d][c].valueAsNumber;
      const valid = Number.isFinite(value);
      if (valid) {
        inputs[d][c].removeAttribute("aria-invalid");
        costs[d][c] = sign * value;
        mark(d, c);
      } else inputs[d][c].setAttribute("aria-invalid", "true");
      follow();
    }

    // Buttons that have done their work are no longer there to be focused on: what they changed is.
    const focusOn = (id) => byId(id).closest(".scroll").focus({ preventScroll: true });

    function reset() {
      originalCosts.forEach((row, d) => row.forEach((cost, c) => set(d, c, cost)));
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
