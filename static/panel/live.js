// The panel's own script, second half: the one live stream of a page, and the log that grows.
//
//   <div data-live="/address/of/the/stream">    one per page. Every `changed` becomes the event `live` on <body>
//                                               (at most twice a second), so parts say hx-trigger="live from:body".
//   <div class="log" data-log="/address/of/the/log" data-offset="0" data-job="…">   see templates/ui/log_panel.html
'use strict';
const REST_S = 5, SILENT_S = 40, MAX_LINES = 3000, LEAP = 1 << 20, MAX_CHARS = 4000;

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
const ESC = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07)/g;
const level = t => /\b(ERROR|CRITICAL|FATAL)\b|^Traceback |^\S*(Error|Exception): /.test(t) ? 'error' : /\bWARN(ING)?\b/.test(t) ? 'warning' : 'info';
const clock = t => (/(?:^|[ T[])(\d\d:\d\d:\d\d)(?=[\s,.\]Z])/.exec(t.slice(0, 60)) || ['', ''])[1];
const cell = (tag, cls, text) => { const el = document.createElement(tag); if (cls) el.className = cls; el.textContent = text; return el };

class Log {
  constructor(box) {
    Object.assign(this, { box, url: box.dataset.log, job: box.dataset.job, next: +box.dataset.offset || 0, number: 1, rest: '', gone: 0, leapt: 0, busy: false, again: false });
    this.tools = $(`[data-filter="#${box.id}"]`); this.follow = $(`[data-follow="#${box.id}"]`); this.note = $(box.dataset.note);
    if (this.next > 0) { this.number = 0; this.leapt = this.next; this.tell() }  // started in the middle: lines have no numbers
    box.addEventListener('scroll', () => { if (this.follow && !this.own) this.follow.checked = box.scrollHeight - box.scrollTop - box.clientHeight < 24; this.own = false });
    this.follow?.addEventListener('change', () => this.bottom());
    this.fetch();
  }
  bottom() { if (this.follow?.checked && this.box.scrollHeight > this.box.clientHeight) { const was = this.box.scrollTop; this.box.scrollTop = this.box.scrollHeight; this.own = this.box.scrollTop !== was } }
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
    const url = new URL(this.url, location); url.searchParams.set('offset', this.next);
    const answer = await fetch(url, { headers: { Accept: 'text/plain' } });
    if (!answer.ok) { if (answer.status < 500) return false; throw new Error(answer.status) }
    const size = +answer.headers.get('X-Log-Size'), start = +(answer.headers.get('X-Log-Start') ?? this.next);
    if (size - start > LEAP && start >= this.next && !url.searchParams.has('all')) { this.leap(size - LEAP / 4); return true }
    if (start > this.next) this.leap(start);                      // the host's disk bound removed a piece
    const bytes = new Uint8Array(await answer.arrayBuffer()), whole = this.cut(bytes);
    this.next += whole; this.add(new TextDecoder().decode(bytes.subarray(0, whole)));
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
  leap(to) { this.leapt += to - this.next; this.next = to; this.rest = ''; this.number = 0; this.tell() }
  add(text) {
    const lines = (this.rest + text.replace(ESC, '')).split('\n'); this.rest = lines.pop().slice(-65536);
    const over = Math.max(0, lines.length - MAX_LINES), part = document.createDocumentFragment(), [q, kind] = this.tools ? asked(this.tools) : ['', 'all'];
    if (this.number) this.number += over;
    for (const raw of lines.slice(over)) { const el = this.line(raw, this.number); el.hidden = !shown(el, q, kind); part.append(el); if (this.number) this.number++ }
    $('.pending', this.box)?.remove(); this.box.append(part); this.gone += over;
    for (let n = $$('.ln', this.box).length - MAX_LINES; n > 0; n--) { this.box.firstElementChild.remove(); this.gone++ }
    if (this.rest.trim()) { const el = this.line(this.rest, this.number); el.classList.add('pending'); el.removeAttribute('id'); el.hidden = !shown(el, q, kind); this.box.append(el) }
    this.tell(); this.bottom(); this.count();
  }
  line(raw, number) {
    let text = raw.split('\r').filter(s => s.trim()).pop() ?? '';  // a progress bar draws itself again after \r
    if (text.length > MAX_CHARS) text = text.slice(0, MAX_CHARS) + '…';
    const el = cell('div', 'ln', ''), kind = el.dataset.kind = level(text);
    if (number) el.id = this.box.id + '-L' + number;
    el.append(cell('span', 'no', number || ''), cell('time', '', clock(text)), cell('span', 'lv', { info: '', warning: 'WARN', error: 'ERROR' }[kind]), cell('span', '', text));
    return el;
  }
  count() { for (const kind of ['warning', 'error']) { const n = this.tools && $(`[data-count=${kind}]`, this.tools); if (n) n.textContent = $$(`.ln[data-kind=${kind}]`, this.box).length } }
  tell() {
    if (!this.note || !(this.gone || this.leapt)) return;
    const words = this.note.dataset, parts = [];
    if (this.gone) parts.push(fill(words.lines, { n: this.gone.toLocaleString('en') }));
    if (this.leapt) parts.push(fill(words.bytes, { n: (this.leapt / 1048576).toFixed(1) }));
    this.note.textContent = parts.join(' '); this.note.hidden = false;
  }
}
function findLogs() { $$('.log[data-log]').forEach(box => { if (!box.berth) { box.berth = new Log(box); logs.push(box.berth) } }) }
document.addEventListener('htmx:afterSettle', () => { for (let i = logs.length; i--;) if (!logs[i].box.isConnected) logs.splice(i, 1); findLogs() });
document.addEventListener('DOMContentLoaded', () => {
  stream.url = $('[data-live]')?.dataset.live || null;
  findLogs();
  if (stream.url && !document.hidden) connect();
});
