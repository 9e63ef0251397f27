// Scales, round numbers along them, and the two axes of a chart.

const MARGIN = { right: 12, top: 8, bottom: 40 };

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low > high ? [0, 1] : [low, high];
}

// Round numbers from low to high, and the step between them.
function ticks(low, high, count, whole) {
  const raw = (high - low || 1) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.7) || 10);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Number(value.toPrecision(12)));
  }
  return [found, step];
}

function padded([low, high], fromZero) {
  if (fromZero) return [Math.min(0, low), Math.max(high * 1.06, high === 0 ? 1 : high)];
  const space = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [low - space, high + space];
}

const scale = ([low, high], start, end) => (value) => start + ((value - low) / (high - low || 1)) * (end - start);

// Numbers along an axis as text, with as many digits as the step between them needs, so that no two read alike.
function labels([values, step], asPercent) {
  const largest = Math.max(...values.map(Math.abs), 0);
  const [unit, sign] = asPercent ? [0.01, "%"] : [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => largest >= Math.max(size, 1e4)) || [1, ""];
  const order = (value) => Math.floor(Math.log10(value) + 1e-9);
  const tiny = unit === 1 && largest > 0 && largest < 1e-3;
  const digits = Math.min(20, Math.max(0, (tiny ? order(largest) : 0) - order(step / unit)));
  return values.map((value) => (value === 0 ? `0${asPercent ? sign : ""}` : tiny ? value.toExponential(digits) : `${(value / unit).toFixed(digits)}${sign}`));
}

// The scale of y, and where the axis of x begins: right of the longest number.
function yAxis(place, range, label, width, height, asPercent) {
  const y = scale(range, height - MARGIN.bottom, MARGIN.top);
  const marks = ticks(range[0], range[1], Math.max(2, Math.floor(height / 48)));
  const texts = labels(marks, asPercent);
  const left = 30 + 6.8 * Math.max(...texts.map((text) => text.length), 1);
  marks[0].forEach((value, index) => {
    place.append(
      svg("line", { class: "gridline", x1: left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, texts[index]));
  });
  const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
  place.append(svg("text", { class: "label", "text-anchor": "middle", transform: `translate(11 ${middle}) rotate(-90)` }, label));
  return [y, left];
}

function xLabel(place, label, left, width, height) {
  place.append(svg("text", { class: "label", x: (left + width - MARGIN.right) / 2, y: height - 5, "text-anchor": "middle" }, label));
}

function xAxis(place, range, label, left, width, height, whole) {
  const x = scale(range, left, width - MARGIN.right);
  const bottom = height - MARGIN.bottom;
  place.append(svg("line", { class: "axis", x1: left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  const marks = ticks(range[0], range[1], Math.max(2, Math.floor(width / 70)), whole);
  const texts = labels(marks);
  marks[0].forEach((value, index) => {
    place.append(svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, texts[index]));
  });
  xLabel(place, label, left, width, height);
  return x;
}
