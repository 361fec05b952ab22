// SPDX-License-Identifier: Apache-2.0
// The token, requests, and the address of a view: what is shown, in which range and
// with which selection, so that a link shows the same to others.
"use strict";

// ---- the token ----

// Behind the API server's proxy, all proxied pages share one origin and its storage:
// the token is then kept in memory only. The proxy also removes the header
// Authorization.
const proxied = location.pathname.includes("/proxy/");
const tokenKey = "gpupilot-token";
let token = proxied ? "" : sessionStorage.getItem(tokenKey) || "";
let loggedIn = null; // is called after a login; null: no login is needed

function keepToken(t) {
  token = t;
  if (proxied) return;
  if (t) sessionStorage.setItem(tokenKey, t);
  else sessionStorage.removeItem(tokenKey);
}

// askToken shows the login and waits for it.
function askToken(why) {
  $("login").hidden = false;
  document.querySelector("main").hidden = true;
  $("banner").hidden = true;
  $("views").hidden = $("glance").hidden = true;
  $("logout").hidden = true;
  document.body.classList.remove("dead");
  $("summary").textContent = "not logged in";
  $("login-error").textContent = why;
  $("login-error").hidden = !why;
  $("token").focus();
  return new Promise((done) => { loggedIn = done; });
}

$("login-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const given = $("token").value.replace(/\s/g, "");
  if (!given || !loggedIn) return;
  keepToken(given);
  $("token").value = "";
  $("login-error").hidden = true;
  $("summary").textContent = "connecting…";
  const done = loggedIn;
  loggedIn = null;
  done();
});

$("logout").addEventListener("click", () => {
  keepToken("");
  location.reload();
});

// ---- requests ----

class Refused extends Error {
  constructor(status, text, retry) {
    super(text);
    this.status = status;
    this.retry = retry;
  }
}

async function request(path, signal, more = {}) {
  const headers = { ...more };
  if (token && proxied) headers["X-Gpupilot-Token"] = token;
  else if (token) headers.Authorization = "Bearer " + token;
  const r = await fetch(path, { headers, cache: "no-store", signal });
  if (r.ok) return r;
  const text = await r.json().then((b) => b.error, () => "");
  throw new Refused(r.status, text || "answer " + r.status, Number(r.headers.get("Retry-After")) || 0);
}

async function get(path) {
  const r = await request(path, AbortSignal.timeout(10000));
  return { body: await r.json(), age: Number(r.headers.get("Age")) || 0, event: r.headers.get("X-Gpupilot-Event") || "" };
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const about = (w) => "?namespace=" + encodeURIComponent(w.namespace) + "&name=" + encodeURIComponent(w.name);

// ---- the address ----

const viewNames = ["workloads", "fleet", "gpu", "decisions"];

function readRoute() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: viewNames.includes(name) ? name : "workloads", p: new URLSearchParams(query || "") };
}

let route = readRoute();

// hashOf returns the address of a view with parameters; empty ones are left out.
function hashOf(view, params = {}) {
  const p = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) if (v !== null && v !== undefined && v !== "" && v !== false) p.set(k, v);
  const text = p.toString();
  return "#" + view + (text ? "?" + text : "");
}

const link = (text, view, params, attrs = {}) => el("a", { href: hashOf(view, params), ...attrs }, text);

// remember changes parameters of the present address, without an entry in the browser's
// history.
function remember(change) {
  const params = { ...Object.fromEntries(route.p), ...change };
  history.replaceState(null, "", hashOf(route.view, params));
  route = readRoute();
}

addEventListener("hashchange", () => {
  const before = route.view;
  route = readRoute();
  routed(before !== route.view);
});
