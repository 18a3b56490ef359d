// The panel's own script, first half: theme, words for screen readers, copying, filters, htmx manners.
// It runs in <head> without `defer`, so that the theme is set before the first paint. No framework, no eval.
'use strict';
const $ = (s, r = document) => r.querySelector(s), $$ = (s, r = document) => [...r.querySelectorAll(s)];
const root = document.documentElement;

// --- theme: a signed-in person's choice comes with the page; others keep theirs in this browser ----------------------
const kept = {
  get theme() { try { return localStorage.theme } catch { return null } },       // storage can be switched off
  set theme(v) { try { localStorage.theme = v } catch { /* then the choice lasts for this page */ } },
};
const theme = root.dataset.choice || kept.theme || 'auto';
const setTheme = v => { if (v === 'light' || v === 'dark') root.dataset.theme = v; else delete root.dataset.theme };
setTheme(theme);

// --- helpers that live.js and pages use ------------------------------------------------------------------------------
const say = text => { const s = $('#announce'); if (s && text) s.textContent = text };
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, k) => values[k]);
const csrf = () => JSON.parse(document.body.getAttribute('hx-headers') || '{}');
/** "40 s" or "3 min" in the page's language; the templates of both words come with <body>. */
const span = seconds => {
  const words = document.body.dataset, n = Math.round(seconds);
  return n < 90 ? fill(words.sec, { n }) : fill(words.min, { n: Math.round(n / 60) });
};

// --- filters: a search box and one radio group narrow what [data-kind] shows -----------------------------------------
const shown = (el, q, kind) =>
  (kind === 'all' || el.dataset.kind.split(' ').includes(kind)) && (!q || el.textContent.toLowerCase().includes(q));
const narrows = (box, input) => !input.closest(box.dataset.filter);  // a radio inside what is filtered is a choice, not a filter
const asked = box => [
  ($('input[type=search]', box)?.value || '').trim().toLowerCase(),
  $$('input[type=radio]:checked', box).find(radio => narrows(box, radio))?.value || 'all',
];
function filter(box) {
  const [q, kind] = asked(box), items = $$('[data-kind]', $(box.dataset.filter));
  for (const el of items) el.hidden = !shown(el, q, kind);
  const n = items.filter(el => !el.hidden).length, none = $(box.dataset.none);
  if (none) none.hidden = n > 0;
  say(n + ' / ' + items.length);
}
let typing = 0;
// data-suggest='{"id of a field": "value"}' on a choice: fills fields that nobody has typed into.
function suggest(choice) {
  for (const [id, value] of Object.entries(JSON.parse(choice.dataset.suggest))) {
    const field = document.getElementById(id);
    if (field && !(field.dataset.typed && field.value)) field.value = value;
  }
}
document.addEventListener('input', e => {
  const t = e.target, box = t.closest('[data-filter]');
  if (t.dataset.suggest) suggest(t); else t.dataset.typed = 'yes';
  if (t.name === 'theme' && t.closest('.prefs')) {
    kept.theme = t.value; setTheme(t.value);
    const form = t.closest('form');
    if (form.dataset.keep) fetch(form.action, { method: 'POST', headers: csrf(), body: new FormData(form) }).catch(() => {}); // only a preference
  }
  if (box && t.matches('[type=search], [type=radio]') && narrows(box, t)) { clearTimeout(typing); typing = setTimeout(filter, 120, box) }
});
document.addEventListener('submit', e => { if (e.target.matches('[data-filter]')) e.preventDefault() });

// --- copy and jump ----------------------------------------------------------------------------------------------------
async function copy(text) {
  try { await navigator.clipboard.writeText(text); return } catch { /* no permission, or plain HTTP: the old way below */ }
  const area = document.createElement('textarea');
  area.value = text; area.className = 'vh'; document.body.append(area); area.select();
  document.execCommand('copy'); area.remove();
}
function jump(log, line) {
  if (!line) return;
  log.scrollTop += line.getBoundingClientRect().top - log.getBoundingClientRect().top - 60; log.focus({ preventScroll: true });
}
document.addEventListener('click', async e => {
  const b = e.target.closest('[data-copy], [data-jump]');
  if (!b) return;
  if (b.dataset.jump) {                                        // "#L12", or a kind of line in the log it names
    const log = $(b.dataset.log || '.log'), line = b.dataset.jump[0] === '#' ? $(b.dataset.jump) : $(`[data-kind=${b.dataset.jump}]:not([hidden])`, log);
    jump(log, line); return;
  }
  await copy(b.dataset.text || $('#' + b.dataset.copy).textContent.trim());
  b.focus(); b.classList.add('done'); say(b.dataset.said); setTimeout(() => b.classList.remove('done'), 1600);
});

// --- the page is there ------------------------------------------------------------------------------------------------
const said = new Map();                                        // what each [data-say] said last: a change is announced once
const listen = (aloud) => {                                    // what changed at the same time is said in one go
  const news = $$('[data-say][id]').filter(el => said.get(el.id) !== el.dataset.say);
  for (const el of news) said.set(el.id, el.dataset.say);
  if (aloud) say(news.map(el => el.dataset.say).filter(Boolean).join('. '));
};
document.addEventListener('DOMContentLoaded', () => {
  const pick = $(`.prefs [name=theme][value=${CSS.escape(theme)}]`);
  if (pick) pick.checked = true;
  $$('.log.at-root').forEach(log => jump(log, $('.root', log)));
  listen(false);
});

// --- htmx manners -----------------------------------------------------------------------------------------------------
document.addEventListener('say', e => say(e.detail.value ?? e.detail));         // HX-Trigger: {"say": "…"}
document.addEventListener('htmx:responseError', e => {           // a refusal as JSON: what it says, above the page
  let answer = null;
  try { answer = JSON.parse(e.detail.xhr.responseText) } catch { return }
  if (!answer.message || !$('#notice')) return;
  const note = document.createElement('div'), words = document.createElement('div');
  note.className = 'note bad'; note.setAttribute('role', 'alert');
  for (const [tag, text] of [['h3', answer.message], ['p', answer.hint]]) if (text) { const el = document.createElement(tag); el.textContent = text; words.append(el) }
  note.append(words); $('#notice').replaceChildren(note); note.scrollIntoView({ block: 'nearest' });
});
let opened = [];
document.addEventListener('htmx:beforeRequest', e => {           // a hidden tab asks for nothing
  if (document.hidden && e.detail.elt.matches('[hx-trigger*=every]') && !e.detail.requestConfig.triggeringEvent) e.preventDefault();
});
document.addEventListener('htmx:beforeSwap', e => {
  const { xhr, target, requestConfig } = e.detail, at = document.activeElement;
  // A refusal comes as a note with its own place on the page; anything else of 4xx or 5xx is not for this target.
  if (xhr.status >= 400 && xhr.getResponseHeader('HX-Retarget')) { e.detail.shouldSwap = true; e.detail.isError = false }
  // A live part never takes a field from under a person's fingers, nor a question that waits for its answer.
  const live = requestConfig.verb === 'get' && requestConfig.elt.matches('[hx-trigger*=every], [hx-trigger*=live]');
  const busy = at && at !== document.body && target.contains(at) && at.matches('input:not([type=radio], [type=checkbox]), textarea, select');
  if (live && xhr.status < 400 && (busy || $(':popover-open', target))) e.detail.shouldSwap = false;
  opened = $$('details[open][id]', target).map(d => d.id);
});
document.addEventListener('htmx:afterSwap', () => { for (const id of opened) { const d = document.getElementById(id); if (d) d.open = true } });
document.addEventListener('htmx:afterSettle', () => {             // what could only fail is not started; it can still be saved
  const plan = $('#plan'), go = $('#act-deploy');
  if (plan && go) go.disabled = 'never' in plan.dataset;
  listen(true);
});
