// The panel's own script, second half: the one live stream of a page, and the log that grows.
//
//   <div data-live="/address/of/the/stream">    one per page. Every `changed` becomes the event `live` on <body>
//                                               (at most twice a second), so parts say hx-trigger="live from:body".
//   <div class="log" data-log="/address/of/the/log" data-offset="0" data-job="…">   see templates/ui/log_panel.html
'use strict';
const REST_S = 5, SILENT_S = 40, MAX_LINES = 3000, LEAP = 1 << 20, PART = 1 << 18, NEAR = 1 << 17, MAX_CHARS = 4000, MAX_REST = 1 << 16, PART_LINES = 20;
// What the page spends on a log: it builds lines for so long at a time (less where the frame took long), and in a flood more seldom,
// since most of a frame costs the same for one line and for four hundred. LATE_MS after the last time that none waited, it is one.
const BUILD_MS = { least: 4, most: 8 }, FRAME_MS = 20, MOST = 400, DRAW_MS = 50, FLOOD_MS = 200, LATE_MS = 2500;

// --- old numbers: say so --------------------------------------------------------------------------------------------
const fresh = { at: Date.now(), broken: false };
function good() { fresh.at = Date.now(); if (fresh.broken) { fresh.broken = false; tellAge() } }
function broken() { fresh.broken = true; setTimeout(tellAge, 3000) }            // a blink is not worth a note
function tellAge() {
  const note = $('#stale'), age = (Date.now() - fresh.at) / 1000;
  if (!note) return;
  if (!fresh.broken) { note.hidden = true; return }
  if (age < 3) return;
  const text = fill(note.dataset.text, { age: span(age) }), line = $('p', note);
  if (note.hidden) say($('h3', note).textContent);
  note.hidden = false; line.textContent = text;
}
setInterval(() => fresh.broken && tellAge(), 1000);
document.addEventListener('htmx:sendError', broken);
document.addEventListener('htmx:timeout', broken);
document.addEventListener('htmx:responseError', e => { if (e.detail.xhr.status >= 502 && e.detail.xhr.status <= 504) broken() });
document.addEventListener('htmx:afterOnLoad', () => { if (!stream.url) good() });

// --- one stream per page ----------------------------------------------------------------------------------------------
const stream = { url: null, source: null, tries: 0, timer: 0, heard: 0, started: false };
let waiting = 0, last = 0;
function changed() {                                            // first at once, then at most one in 500 ms, never lost
  if (waiting) return;
  waiting = setTimeout(() => { waiting = 0; last = Date.now(); htmx.trigger(document.body, 'live') }, Math.max(0, last + 500 - Date.now()));
}
function connect() {
  clearTimeout(stream.timer);
  stream.source?.close();
  const source = stream.source = new EventSource(stream.url);
  stream.heard = Date.now();
  const on = (name, act) => source.addEventListener(name, e => { stream.heard = Date.now(); good(); act(JSON.parse(e.data || '{}')) });
  on('hello', () => { root.dataset.stream = 'on'; stream.tries = 0; changed(); logs.forEach(log => log.fetch()) });   // what was missed while away
  on('ping', () => {});
  on('changed', changed);
  on('skipped', () => { changed(); logs.forEach(log => log.fetch()) });
  on('log', data => logs.forEach(log => log.job === data.job && log.take(data)));
  on('bye', () => { pause(); stream.timer = setTimeout(connect, 200 + Math.random() * 800) });    // the server asks for a new sign-in check
  source.onerror = () => { pause(); broken(); stream.timer = setTimeout(connect, Math.min(10000, 500 * 2 ** stream.tries++)) };
}
function pause() { root.dataset.stream = 'off'; clearTimeout(stream.timer); stream.source?.close(); stream.source = null }
setInterval(() => { if (stream.source && Date.now() - stream.heard > SILENT_S * 1000) { broken(); connect() } }, 5000); // half-open connection
document.addEventListener('visibilitychange', () => {
  if (!stream.url) return;
  if (document.hidden) { clearTimeout(stream.timer); stream.timer = setTimeout(pause, REST_S * 1000) }
  else if (stream.source) clearTimeout(stream.timer);
  else connect();
});
addEventListener('pagehide', pause);                            // a page in the back-forward cache holds no connection
addEventListener('pageshow', e => { if (e.persisted && stream.url) connect() });

// --- logs -------------------------------------------------------------------------------------------------------------
const logs = [];
const ESC = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*\x07)/g;    // in linear time, whatever a log holds
const BYTES = /[\0-\x08\x0e-\x1f\x7f-\x9f\ufffd]+/g, NOT_ASCII = /[^\t\x20-\x7e]+/g;    // what is no text: one sign for all of it
const level = t => /\b(ERROR|CRITICAL|FATAL)\b|^Traceback |^\S*(Error|Exception): /.test(t) ? 'error' : /\bWARN(ING)?\b/.test(t) ? 'warning' : 'info';
const clock = t => (/(?:^|[ T[])(\d\d:\d\d:\d\d)(?=[\s,.\]Z])/.exec(t.slice(0, 60)) || ['', ''])[1];
const cell = (tag, cls, text) => { const el = document.createElement(tag); if (cls) el.className = cls; el.textContent = text; return el };

const LINE = cell('div', 'ln', ''); LINE.dataset.kind = 'info'; LINE.append(cell('span', 'no', ''), cell('time', '', ''), cell('span', 'lv', ''), cell('span', '', ''));   // copied for each line

class Log {
  constructor(box) {
    Object.assign(this, { box, url: box.dataset.log, job: box.dataset.job, next: +box.dataset.offset || 0, number: 1, rest: '', gone: 0, leapt: 0, busy: false, again: false, queue: [], lines: 0, drawing: 0, budget: BUILD_MS.most, pace: MAX_LINES, since: 0, late: false, seen: { warning: 0, error: 0 } });
    this.tools = $(`[data-filter="#${box.id}"]`); this.follow = $(`[data-follow="#${box.id}"]`); this.note = $(box.dataset.note);
    this.root = +box.dataset.root || 0; this.until = +box.dataset.until || 0;      // the line that is the cause, and by which byte it has come
    this.follows = new Set((box.dataset.follows || '').split(' ').filter(Boolean).map(Number));
    if (this.root) this.number = +box.dataset.number || 1;
    this.bounded = this.until > 0;
    if (this.next > 0) { if (!this.root) this.number = 0; this.leapt = this.next; this.tell() }  // started in the middle: lines have no numbers
    box.addEventListener('scroll', () => { if (this.follow && !this.own) this.follow.checked = box.scrollHeight - box.scrollTop - box.clientHeight < 24; this.own = false });
    this.follow?.addEventListener('change', () => this.bottom());
    this.fetch();
  }
  bottom() {
    if (!this.follow?.checked) return;
    const was = this.box.scrollTop; this.box.scrollTop = 1e9; this.own = this.box.scrollTop !== was;
  }
  take({ offset, end, text }) {                                  // bytes [offset, end); text is absent when it is too long to send
    if (end <= this.next) return;                                // already here
    if (offset !== this.next || text == null || this.busy) { this.fetch(); return }
    this.next = end; this.add(text);
  }
  async fetch() {                                                // all that is missing, by offset, in order, one request at a time
    if (this.busy) { this.again = true; return }
    this.busy = true;
    try {
      do { this.again = false } while (await this.part() || this.again);
      good();
    } catch { broken(); setTimeout(() => this.fetch(), 3000) } finally { this.busy = false }
  }
  async part() {
    const url = new URL(this.url, location); url.searchParams.set('offset', this.next); url.searchParams.set('limit', this.next < this.until ? Math.min(PART, this.until - this.next) : PART);
    const answer = await fetch(url, { headers: { Accept: 'text/plain' } });
    if (!answer.ok) { if (answer.status < 500) return false; throw new Error(answer.status) }
    const size = +answer.headers.get('X-Log-Size'), start = +(answer.headers.get('X-Log-Start') ?? this.next);
    const seen = this.next >= this.until;                         // the cause is here: what is left may be leapt over
    if (seen && size - start > (this.until ? NEAR : LEAP) && start >= this.next && !url.searchParams.has('all')) { this.until = 0; this.leap(size - (this.root ? NEAR : LEAP) / 4); return true }
    if (start > this.next) this.leap(start);                      // the host's disk bound removed a piece
    const bytes = new Uint8Array(await answer.arrayBuffer()), whole = this.cut(bytes);
    this.next += whole; this.add(new TextDecoder().decode(bytes.subarray(0, whole)));
    if (this.queue.length) await new Promise(then => setTimeout(then, 16));        // the page draws between two parts
    return whole > 0 && this.next < size;
  }
  cut(bytes) {                                                   // do not split a character at the end of a part
    let i = bytes.length;
    for (let back = 1; back <= 3 && back < bytes.length; back++) {
      const b = bytes[bytes.length - back];
      if (b >= 0xc0) { if (back < (b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2)) i = bytes.length - back; break }
      if (b < 0x80) break;
    }
    return i;
  }
  leap(to) {
    const bytes = to - this.next; this.leapt += bytes; this.next = to; this.rest = ''; this.number = 0;
    this.queue.push({ bytes }); this.tell();
  }
  add(text) {                                                    // lines wait in a queue of what can be shown at most
    const lines = (this.rest + (text.includes('\x1b') ? text.replace(ESC, '') : text)).split('\n'), rest = lines.pop();
    this.rest = rest.slice(-MAX_REST); this.leapt += rest.length - this.rest.length;
    const now = performance.now(), most = this.room(now);
    for (const raw of lines.slice(-most)) this.queue.push(raw);
    const early = this.queue.splice(0, this.queue.length - most), gone = Math.max(0, lines.length - most) + early.filter(e => typeof e === 'string').length;
    if (gone) {
      const bytes = early.reduce((n, e) => n + (e.bytes || 0), 0);
      this.gone += gone; if (this.number) this.number += gone;
      this.queue.unshift({ lines: early.reduce((n, e) => n + (e.lines || 0), gone) });
      if (bytes) this.queue.unshift({ bytes });
    }
    if (!this.drawing) this.draw();
  }
  room(now) {                                                    // in a flood no more waits than a second draws: it leaps instead
    if (this.bounded) return Infinity;
    if (!this.queue.length) { this.since = now; this.late = false }
    this.late ||= now - this.since > LATE_MS;
    return this.late ? Math.max(4 * PART_LINES, Math.min(MAX_LINES, this.pace)) : MAX_LINES;
  }
  draw() {                                                       // some of the queue: lines are built first, and put in with the next frame
    const until = performance.now() + this.budget, [q, kind] = this.tools ? asked(this.tools) : ['', 'all'], built = [], most = this.late ? MOST / 2 : MOST;
    let n = 0;
    for (; n < this.queue.length && n < most && (n < PART_LINES || n % 4 || performance.now() < until); n++) {
      const raw = this.queue[n], isLine = typeof raw === 'string', el = isLine ? this.line(raw, this.number) : this.gap(raw);
      if (q || kind !== 'all') el.hidden = !shown(el, q, kind);
      built.push(el);
      if (this.number && isLine) this.number++;
    }
    this.queue.splice(0, n);
    if (n > PART_LINES) this.drawing = requestAnimationFrame(() => this.show(built, q, kind)); else this.show(built, q, kind);
  }
  show(built, q, kind) {
    this.drawing = 0;
    const began = performance.now();
    for (const el of built) this.put(el);
    if (!this.bounded) this.trim();                              // a log with its cause marked has ended, and the page takes parts of it
    this.pending?.remove(); this.pending = null;
    if (this.rest.trim() && !this.queue.length) {
      const el = this.pending = this.line(this.rest, this.number); el.classList.add('pending'); el.removeAttribute('id'); el.hidden = !shown(el, q, kind); this.box.append(el);
    }
    this.tell(); this.count(); this.bottom(); this.begin();
    if (!this.queue.length) return;
    const took = performance.now() - began, wait = this.late ? FLOOD_MS : DRAW_MS;   // with the layout
    this.budget = Math.max(BUILD_MS.least, Math.min(BUILD_MS.most, this.budget * (took > FRAME_MS ? 0.7 : 1.2)));
    this.pace = Math.round(built.length * 1000 / wait);
    this.drawing = setTimeout(() => this.draw(), wait);
  }
  begin() {                                                      // once, when the cause has come: that is where reading begins
    const line = this.root && !this.begun && document.getElementById(this.box.id + '-L' + this.root);
    if (!line) return;
    this.begun = true;
    if (location.hash === '#' + line.id) { line.scrollIntoView({ block: 'center' }); return }
    this.box.scrollTop += line.getBoundingClientRect().top - this.box.getBoundingClientRect().top - 60;
  }
  put(el) {                                                      // parts of some lines: what is out of sight costs no layout
    if (!this.last || this.last.childElementCount >= PART_LINES) { this.last = cell('div', 'part', ''); this.box.append(this.last); if (this.pending) this.box.append(this.pending) }
    this.last.append(el); this.lines++;
    const kind = el.getAttribute('data-kind'); if (kind !== 'info') this.seen[kind]++;
  }
  trim() {                                                       // the oldest lines go, whole parts at once
    while (this.lines > MAX_LINES) {
      const part = this.box.firstElementChild, over = this.lines - MAX_LINES, all = part.childElementCount <= over, old = all ? [...part.children] : [...part.children].slice(0, over);
      for (const el of old) { const kind = el.getAttribute('data-kind'); if (kind !== 'info') this.seen[kind]--; if (!el.matches('.gap')) this.gone++; if (!all) el.remove() }
      if (all) part.remove();
      this.lines -= old.length;
    }
  }
  gap({ lines, bytes }) {                                        // a line that says what is left out in this place
    const words = this.note?.dataset ?? {}, el = cell('div', 'ln gap', '');
    const text = bytes ? fill(words.bytes ?? '…', { n: (bytes / 1048576).toFixed(1) }) : fill(words.lines ?? '…', { n: lines.toLocaleString('en') });
    el.dataset.kind = 'info'; el.append(cell('span', 'no', '⋯'), cell('time', '', ''), cell('span', 'lv', ''), cell('span', '', text));
    return el;
  }
  line(raw, number) {
    let text = raw.includes('\r') ? raw.slice(-MAX_REST).split('\r').filter(s => s.trim()).pop() ?? '' : raw;  // a progress bar draws itself again after \r
    if (text.length > MAX_CHARS) text = text.slice(0, MAX_CHARS) + '…';
    const odd = text.match(BYTES)?.length ?? 0;
    if (odd) text = text.replace(odd > 8 ? NOT_ASCII : BYTES, '\ufffd');  // letters of ten scripts at random: fonts without end
    const el = LINE.cloneNode(true), [no, time, lv, body] = el.children, kind = level(text), at = clock(text);
    if (number) { el.id = this.box.id + '-L' + number; no.textContent = number }
    if (at) time.textContent = at;
    if (kind !== 'info') { el.setAttribute('data-kind', kind); lv.textContent = kind === 'error' ? 'ERROR' : 'WARN' }
    body.textContent = text;
    if (number && this.root) this.tag(el, body, number);
    return el;
  }
  tag(el, body, number) {                                        // the cause, and what only follows from it
    if (number !== this.root && !this.follows.has(number)) return;
    if (number === this.root) el.classList.add('root');
    body.append(cell('span', 'tag', number === this.root ? this.box.dataset.word : this.box.dataset.followsWord));
  }
  count() { for (const kind of ['warning', 'error']) { const n = this.tools && $(`[data-count=${kind}]`, this.tools); if (n && n.textContent !== String(this.seen[kind])) n.textContent = this.seen[kind] } }
  tell() {
    if (!this.note || !(this.gone || this.leapt)) return;
    const words = this.note.dataset, parts = [];
    if (this.gone) parts.push(fill(words.lines, { n: this.gone.toLocaleString('en') }));
    if (this.leapt) parts.push(fill(words.bytes, { n: (this.leapt / 1048576).toFixed(1) }));
    const said = parts.join(' ');
    if (this.note.textContent !== said) { this.note.textContent = said; this.note.hidden = false }
  }
}
function findLogs() { $$('.log[data-log]').forEach(box => { if (!box.berth) { box.berth = new Log(box); logs.push(box.berth) } }) }
document.addEventListener('htmx:afterSettle', () => { for (let i = logs.length; i--;) if (!logs[i].box.isConnected) logs.splice(i, 1); findLogs() });
document.addEventListener('DOMContentLoaded', () => {
  stream.url = $('[data-live]')?.dataset.live || null;
  findLogs();
  if (stream.url && !document.hidden) connect();
});
