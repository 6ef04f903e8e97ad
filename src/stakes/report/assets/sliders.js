// Two questions with a slider each: at which value of one cost do decisions change, and what is a second opinion worth?
"use strict";

const Sliders = (() => {
  const { byId, number, share, are, chart } = Dom;
  const STEPS = 1000; // positions of a slider

  // From 0 to `end`, which is met exactly; between, as many digits as anybody reads.
  function position(slider, end) {
    const at = slider.valueAsNumber;
    return at === STEPS ? end : Number(((end * at) / STEPS).toPrecision(4));
  }

  function breakEven(explorer) {
    const [choose, slider, use] = [byId("vary-cell"), byId("vary"), byId("vary-use")];
    let state, turns, cell;

    function value() {
      return position(slider, state.costs[cell.d][cell.c]);
    }

    // The slider stands at the entered value whenever that, or which cost is varied, has changed.
    function follow(next) {
      state = next;
      const [d, c] = choose.value.split(",").map(Number);
      cell = { d, c };
      for (const option of choose.options) {
        const [row, column] = option.value.split(",").map(Number);
        const text =
          `${state.decisions[row]}, when it is ${state.outcomes[column]} (${state.amount(state.costs[row][column])})`;
        if (option.textContent !== text) option.textContent = text; // the browser measures all that are set
      }
      turns = turningPoints();
      slider.value = STEPS;
      slider.disabled = state.costs[d][c] === 0;
      show();
    }

    // How far from 0 the cost is where a case changes its decision on the way there, sorted, for all cases that do.
    // Towards 0 a cost takes cases to its decision, and a gain (below 0) loses them; a tie at the entered value is as it
    // was decided.
    function turningPoints() {
      const { d, c } = cell;
      const entered = state.costs[d][c];
      const { at } = Decisions.breakEvens(state.probs, state.costs, d, c);
      const size = (value) => Math.min(Math.sign(entered) * value, Math.abs(entered));
      return at.filter((value, i) => size(value) > 0 && (state.choice[i] === d) === entered < 0).map(size).sort();
    }

    // How many cases are decided otherwise at `at` than at the entered value.
    function changed(at) {
      return turns.length - Decisions.countUpTo(turns, Math.abs(at));
    }

    function show() {
      const entered = state.costs[cell.d][cell.c];
      const at = value();
      byId("vary-value").textContent = state.amount(at);
      slider.setAttribute("aria-valuetext", state.amount(at));
      byId("vary-says").textContent = said(entered);
      use.disabled = at === entered;
      byId("vary-chart").hidden = entered === 0;
      if (entered === 0) {
        byId("vary-now").textContent = "";
        return;
      }
      const { d, c } = cell;
      const costs = state.costs.map((row, place) => (place === d ? row.map((v, k) => (k === c ? at : v)) : row));
      const choice = Decisions.decide(Decisions.expectedCosts(state.probs, costs), costs.length);
      const total = Decisions.sum(Decisions.realisedCosts(choice, state.labels, costs));
      const taken = choice.reduce((count, chosen) => count + (chosen === d), 0);
      const others = choice.reduce((count, chosen, i) => count + (chosen !== state.choice[i]), 0);
      byId("vary-now").textContent =
        `At ${state.amount(at)}, ${number(others)} of ${number(choice.length)} cases ${are(others)} decided differently, ` +
        `${state.decisions[d]} is decided in ${number(taken)}, and the total ${state.noun} is ${state.amount(total)}.`;
      chart(byId("vary-chart"), {
        from: Math.min(0, entered), to: Math.max(0, entered), value: changed, mark: at,
        most: Math.max(changed(0), 1), sign: state.sign, xLabel: `${state.noun} of ${state.decisions[d]}, when it is ${state.outcomes[c]}`,
        yLabel: "cases decided differently", description: byId("vary-says").textContent,
      });
    }

    // The break-even points between 0 and the entered value, in words.
    function said(entered) {
      if (entered === 0) return `This ${state.noun} is 0. Enter another above to see its break-even points.`;
      if (!turns.length) return `No decision changes between 0 and ${state.amount(entered)}.`;
      const [farthest, nearest] = [turns[0], turns.at(-1)].map((size) => Math.sign(entered) * size);
      const last = turns.length > 1 ? `, and the last one does at ${state.amount(farthest)}` : "";
      return (
        `From ${state.amount(entered)} towards 0, decisions begin to change at ${state.amount(nearest)}${last}: ` +
        `${number(turns.length)} ${turns.length === 1 ? "case" : "cases"} in all.`
      );
    }

    choose.addEventListener("change", () => follow(state));
    slider.addEventListener("input", show);
    use.addEventListener("click", () => {
      explorer.change(cell.d, cell.c, value());
      slider.focus(); // the button has done its work, and is disabled
    });
    explorer.listen(follow);
    return () => show();
  }

  function secondOpinion(explorer) {
    const [slider, input] = [byId("refer"), byId("refer-cost")];
    let state, ask, most, price;

    function follow(next) {
      state = next;
      ask = Decisions.referral(state.claimed, state.realised);
      const dearest = state.claimed.reduce((a, b) => Math.max(a, b), 0);
      most = dearest > 0 ? 1.05 * dearest : 1; // where every case is expected to gain, none is ever referred
      if (price === undefined) price = Number((most / 4).toPrecision(2));
      show();
      input.value = String(price);
    }

    function show() {
      const cases = state.claimed.length;
      const { referred, total } = ask(price);
      const alone = Decisions.sum(state.realised);
      const saved = alone - total;
      slider.setAttribute("aria-valuetext", state.amount(price));
      slider.value = Math.round((Math.min(Math.max(price, 0), most) / most) * STEPS);
      byId("refer-share").textContent = `${share(referred, cases)} (${number(referred)} of ${number(cases)})`;
      byId("refer-total").textContent = state.amount(total);
      byId("refer-alone").textContent = state.amount(alone);
      byId("refer-says").textContent = !referred
        ? `At ${state.amount(price)} no case is worth a second opinion.`
        : `At ${state.amount(price)} for each, a second opinion is asked for in ${share(referred, cases)} of cases, ` +
          `and the total is ${state.amount(Math.abs(saved))} ${saved >= 0 ? "less" : "more"} than without.`;
      const common = { from: 0, to: most, mark: Math.min(Math.max(price, 0), most), xLabel: "cost of a second opinion" };
      chart(byId("refer-share-chart"), {
        ...common, value: (at) => (100 * ask(at).referred) / cases, most: 100,
        yLabel: "share of cases referred, %", description: "Share of cases referred, against the cost of asking",
      });
      chart(byId("refer-total-chart"), {
        ...common, value: (at) => ask(at).total, yLabel: "total cost",
        description: "Total cost of all cases, against the cost of asking",
      });
    }

    slider.addEventListener("input", () => {
      price = position(slider, most);
      input.value = String(price);
      show();
    });
    input.addEventListener("input", () => {
      if (!Number.isFinite(input.valueAsNumber)) {
        input.setAttribute("aria-invalid", "true");
        return;
      }
      input.removeAttribute("aria-invalid");
      price = input.valueAsNumber;
      show();
    });
    explorer.listen(follow);
    return () => show();
  }

  return { breakEven, secondOpinion };
})();

(() => {
  const explorer = Explorer.start(JSON.parse(Dom.byId("data").textContent));
  Dom.byId("explorer-body").hidden = false;
  const redraw = [Sliders.breakEven(explorer)];
  if (Dom.byId("second-body")) {
    Dom.byId("second-body").hidden = false;
    redraw.push(Sliders.secondOpinion(explorer));
  }
  explorer.follow();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's address bar that comes and goes
    width = window.innerWidth;
    for (const draw of redraw) draw();
  });
})();
