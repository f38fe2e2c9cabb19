// Numbers and text of the page. Everything from telemetry becomes text by `textContent`, never markup.

const NONE = "–";
const digits = (places) => new Intl.NumberFormat("en", { minimumFractionDigits: places, maximumFractionDigits: places });
const FORMATS = [digits(0), digits(1), digits(2), digits(3)];
// Controls, direction overrides and other invisible characters, which would change how the text beside them reads.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;

/** Return a number with so many decimals; a dash for null. */
export function number(value, places = 0) {
  return value === null || value === undefined || !Number.isFinite(value) ? NONE : FORMATS[places].format(value);
}

/** Return a share of 1 in percent, rounded down: 99.99 % is not 100 %. */
export function percent(share) {
  return share === null ? NONE : `${(Math.floor(share * 1000) / 10).toFixed(1)} %`;
}

/** Return a name with invisible characters written out; a dash for an empty one. */
export function name(value) {
  const text = value === null || value === undefined || value === "" ? NONE : String(value);
  return text.replace(UNSEEN, (one) => `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** Set the text of an element where it has changed. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set a class of an element where it has changed. */
export function mark(element, className, on) {
  if (element.classList.contains(className) !== on) element.classList.toggle(className, on);
}

/** Return a new element with a class and a text. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Return a new SVG element with attributes. */
export function draw(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Give a table body rows of text: `cells` returns [text, class] pairs of a value. Rows are reused. */
export function fill(body, values, cells) {
  while (body.rows.length > values.length) body.deleteRow(-1);
  values.forEach((value, at) => {
    const row = body.rows[at] ?? body.insertRow();
    cells(value).forEach(([text, className], column) => {
      const cell = row.cells[column] ?? row.insertCell();
      write(cell, text);
      if (cell.className !== className) cell.className = className;
      const title = text.length > 14 ? text : "";
      if (cell.title !== title) cell.title = title;
    });
  });
}
