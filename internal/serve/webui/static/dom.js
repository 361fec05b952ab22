// SPDX-License-Identifier: Apache-2.0
// Functions for elements and texts that the other scripts use.
"use strict";

const $ = (id) => document.getElementById(id);
const num = (x, digits = 0) => (x === undefined || x === null ? "–" : x.toFixed(digits));
const seconds = (ns) => (ns || 0) / 1e9;

// age formats a duration in whole seconds, minutes or hours.
function age(s) {
  if (s < 120) return Math.round(s) + " s";
  return s < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";
}

function el(tag, attrs = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k === "class") e.className = v;
    else e.setAttribute(k, v);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== ""));
  return e;
}

// replace sets an element's children, or a sentence if there are none.
function replace(box, children, none) {
  box.replaceChildren(...(children.length ? children : [el(box.tagName === "OL" ? "li" : "p", { class: "empty" }, none)]));
}

// keyed keeps one element per entry of a list, so that the focus stays. make creates
// the element of a new entry, and update draws an entry into it.
function keyed(box, list, key, make, update) {
  const have = box.keyed || (box.keyed = new Map());
  const rows = list.map((x) => {
    const k = key(x);
    if (!have.has(k)) have.set(k, make(x));
    const row = have.get(k);
    update(row, x);
    return row;
  });
  const keep = new Set(rows);
  for (const [k, row] of have) if (!keep.has(row)) have.delete(k);
  if (box.children.length !== rows.length || rows.some((r, i) => box.children[i] !== r)) box.replaceChildren(...rows);
}

const plural = (n, one) => n.toLocaleString("en") + " " + one + (n === 1 ? "" : "s");
const percentText = (x) => (x === undefined || x === null ? "–" : x.toFixed(0) + " %");

function button(text, attrs, act) {
  const b = el("button", { type: "button", ...attrs }, text);
  b.addEventListener("click", act);
  return b;
}

// setText changes a text only if it differs, so that a selection stays.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}
