// SPDX-License-Identifier: Apache-2.0

// The search: all words must be in a part of a page; titles count more than text. "/" goes to it, ?q= begins with it.
const box = document.getElementById('search');
const found = document.getElementById('found');
const root = document.body.dataset.root;
const shown = 12;
let entries;

async function load() {
  entries ??= fetch(root + 'search.json').then((r) => r.json()).then((all) => all.map((e) => ({
    ...e, page: e.p.toLowerCase(), title: e.t.toLowerCase(), text: e.x.toLowerCase(),
  })));
  return entries;
}

function score(e, words) {
  let sum = 0;
  for (const w of words) {
    const n = (e.title.includes(w) ? 8 : 0) + (e.page.includes(w) ? 4 : 0) + Math.min(e.text.split(w).length - 1, 3);
    if (n === 0) return 0;
    sum += n;
  }
  return sum;
}

function around(text, word) {
  const at = Math.max(text.toLowerCase().indexOf(word), 0);
  const from = Math.max(at - 30, 0);
  const line = document.createElement('small');
  line.append((from > 0 ? '…' : '') + text.slice(from, at));
  const mark = document.createElement('mark');
  mark.textContent = text.slice(at, at + word.length);
  line.append(mark, text.slice(at + word.length, at + 120));
  return line;
}

async function search() {
  const query = box.value;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) {
    found.hidden = true;
    return;
  }
  let all;
  try {
    all = await load();
  } catch {
    entries = undefined;
    all = [];
  }
  if (query !== box.value) return; // typed on
  const hits = all.map((e) => [score(e, words), e]).filter(([n]) => n > 0).sort((a, b) => b[0] - a[0]).slice(0, shown);
  found.replaceChildren(...hits.map(([, e]) => {
    const a = document.createElement('a');
    a.href = root + e.u;
    a.append(e.t === e.p ? e.t : `${e.p} › ${e.t}`, around(e.x, words.find((w) => e.text.includes(w)) ?? ''));
    const li = document.createElement('li');
    li.append(a);
    return li;
  }));
  if (hits.length === 0) {
    const none = document.createElement('p');
    none.textContent = entries ? 'Nothing has all of these words.' : 'The search needs a web server: open the site over http.';
    found.append(none);
  }
  found.hidden = false;
}

box.addEventListener('input', search);
document.addEventListener('keydown', (e) => {
  if (e.key === '/' && !e.ctrlKey && !e.metaKey && document.activeElement !== box) {
    e.preventDefault();
    box.focus();
  } else if (e.key === 'Escape') {
    found.hidden = true;
  } else if ((e.key === 'ArrowDown' || e.key === 'ArrowUp') && !found.hidden) {
    const links = [...found.querySelectorAll('a')];
    const at = links.indexOf(document.activeElement) + (e.key === 'ArrowDown' ? 1 : -1);
    e.preventDefault();
    (links[at] ?? box).focus();
  } else if (e.key === 'Enter' && document.activeElement === box) {
    found.querySelector('a')?.click();
  }
});
document.addEventListener('click', (e) => {
  if (!e.target.closest('.search')) found.hidden = true;
});

const q = new URLSearchParams(location.search).get('q');
if (q) {
  box.value = q;
  search();
}
