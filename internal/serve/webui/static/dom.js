// SPDX-License-Identifier: Apache-2.0
// Functions for elements and texts that the other scripts use.
"use strict";

const $ = (id) => document.getElementById(id);
const num = (x, digits = 0) => (x === undefined || x === null ? "–" : x.toFixed(digits));
const seconds = (ns) => (ns || 0) / 1e9;
const count = (n) => n.toLocaleString("en");
const plural = (n, one) => count(n) + " " + one + (n === 1 ? "" : "s");
const percentText = (x) => (x === undefined || x === null ? "–" : x.toFixed(0) + " %");

// age formats a duration in whole seconds, minutes, hours or days.
function age(s) {
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return s < 172800 ? (s < 36000 ? Math.round(s / 360) / 10 : Math.round(s / 3600)) + " h" : Math.round(s / 86400) + " days";
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
  box.keyed = null;
  box.replaceChildren(...(children.length ? children : [el(box.tagName === "OL" || box.tagName === "UL" ? "li" : "p", { class: "empty" }, none)]));
}

// keyed keeps one element per entry of a list, so that the focus stays. make creates
// the element of a new entry, and update draws an entry into it.
function keyed(box, list, key, make, update) {
  const have = box.keyed || (box.keyed = new Map()), used = new Set();
  const rows = list.map((x) => {
    const k = key(x);
    if (!have.has(k)) have.set(k, make(x));
    used.add(k);
    const row = have.get(k);
    update(row, x);
    return row;
  });
  for (const k of have.keys()) if (!used.has(k)) have.delete(k);
  if (box.children.length === rows.length && rows.every((r, i) => box.children[i] === r)) return;
  const focus = document.activeElement;
  box.replaceChildren(...rows);
  if (focus !== document.activeElement && box.contains(focus)) focus.focus({ preventScroll: true });
}

function button(text, attrs, act) {
  const b = el("button", { type: "button", ...attrs }, text);
  b.addEventListener("click", act);
  return b;
}

// setText changes a text only if it differs, so that a selection stays.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// setClass changes the classes only if they differ.
function setClass(e, text) {
  if (e.className !== text) e.className = text;
}

const facts = (pairs) => el("dl", { class: "facts" }, ...pairs.map(([k, v, look]) => el("div", {}, el("dt", {}, k), el("dd", look ? { class: look } : {}, String(v)))));

// later calls act after a pause in the calls.
function later(ms, act) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), ms);
  };
}
