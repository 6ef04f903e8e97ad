// Elements, numbers and charts: what the parts of the page draw with. Text only ever becomes text.
"use strict";

const Dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
  const drawn = (name, attributes = {}, ...children) =>
    filled(document.createElementNS(SVG, name), attributes, children);

  const format = (digits) => new Intl.NumberFormat("en-GB", { roundingMode: "halfEven", ...digits }); // as Python rounds
  const whole = format({ maximumFractionDigits: 0 });
  const fine = format({ minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const small = format({ maximumSignificantDigits: 3 });

  // As in the rest of the page: whole numbers from 1,000 on, two decimals from 1 on, three digits below.
  function number(given) {
    const value = given === 0 ? 0 : given; // no -0
    const size = Math.abs(value);
    if (size >= 999.995 || Number.isInteger(value)) return whole.format(value);
    return size >= 0.995 ? fine.format(value) : small.format(value);
  }

  // £13.60, 13.60 €, 12 minutes.
  function withUnit(value, unit, first) {
    const text = number(Math.abs(value));
    const minus = value < 0 && text !== "0" ? "-" : "";
    return minus + (first ? unit + text : unit ? `${text} ${unit}` : text);
  }

  const share = (part, of) => `${of ? ((100 * part) / of).toFixed(1) : "0.0"} %`;
  const are = (count) => (count === 1 ? "is" : "are");

  // Asking for a width after a change lays the whole page out: it is asked for once, until the window's changes.
  let widths = new WeakMap();
  window.addEventListener("resize", () => (widths = new WeakMap()));
  function widthOf(box) {
    if (!widths.get(box)) widths.set(box, box.clientWidth); // 0 while it is hidden
    return Math.max(260, widths.get(box));
  }

  // A line over the columns of pixels, with its axes and a mark at one place, and `other`, a dashed one, if there is
  // one. Both are asked for their values at each column.
  function chart(box, { from, to, value, other, most, mark, xLabel, yLabel, description, sign = 1 }) {
    const width = widthOf(box);
    const [height, right, above, below] = [174, 14, 26, 24];
    const sampled = (count) => Array.from({ length: count + 1 }, (_, place) => from + (place / count) * (to - from));
    const rough = sampled(width).flatMap((at) => (other ? [value(at), other(at)] : [value(at)]));
    const bottom = Math.min(0, ...rough);
    const top = most ?? (Math.max(...rough, bottom) || 1);
    const left = Math.max(64, 14 + 7 * Math.max(number(bottom).length, number(top).length));
    const places = sampled(Math.round(width - left - right));
    const x = (at) => left + ((at - from) / (to - from || 1)) * (width - left - right);
    const y = (amount) => height - below - ((amount - bottom) / (top - bottom || 1)) * (height - above - below);
    const path = (values) => "M" + places.map((at) => `${x(at).toFixed(1)} ${y(values(at)).toFixed(1)}`).join("L");
    const axis = [
      drawn("line", { x1: left, x2: width - right, y1: y(bottom), y2: y(bottom), class: "axis" }),
      drawn("line", { x1: left, x2: width - right, y1: y(top), y2: y(top), class: "grid" }),
      drawn("text", { x: left - 8, y: y(bottom) + 4, "text-anchor": "end" }, number(bottom)),
      drawn("text", { x: left - 8, y: y(top) + 4, "text-anchor": "end" }, number(top)),
      drawn("text", { x: left, y: height - below + 18 }, number(sign * from)),
      drawn("text", { x: width - right, y: height - below + 18, "text-anchor": "end" }, number(sign * to)),
      drawn("text", { x: 0, y: 11 }, yLabel),
    ];
    const marked = [
      drawn("line", { x1: x(mark), x2: x(mark), y1: y(top), y2: y(bottom), class: "mark" }),
      drawn("circle", { cx: x(mark), cy: y(value(mark)), r: 5, class: "mark" }),
    ];
    const shown = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description });
    shown.append(...axis, ...(other ? [drawn("path", { d: path(other), class: "line other" })] : []), drawn("path", { d: path(value), class: "line" }), ...marked);
    box.replaceChildren(shown, element("p", { class: "axis-label", "aria-hidden": "true" }, xLabel));
  }

  // Numbers that came in base64.
  function unpack(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (mark) => mark.charCodeAt(0));
    return new Kind(bytes.buffer);
  }

  // What the page says elsewhere is of the original costs (or utilities), and says so once these have been edited.
  function sayOriginal(edited, nouns, now) {
    document.querySelectorAll(".original").forEach((note, place) => {
      note.hidden = !edited;
      note.textContent = `${nouns[0].toUpperCase()}${nouns.slice(1)} have been edited in the explorer. ` +
        `This is of the original ones${place ? "." : `; ${now}`}`;
    });
  }

  return { byId, element, number, withUnit, share, are, chart, unpack, sayOriginal };
})();
