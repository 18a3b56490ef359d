// The deploy page: sliders beside their number fields, the memory bars that follow them at once (fit.js), proposed changes
// by one click. Without this script the fields, the plan's button and the changes work as parts of the form.
'use strict';
(() => {
  const form = $('#deploy');
  if (!form) return;
  const number = new Intl.NumberFormat(root.lang), PAGE_TOKENS = 400;        // words of a page, as tokens
  const one = value => value.toFixed(1), field = name => form.elements.namedItem(name);
  const typed = name => { const n = Number.parseInt(field(name).value, 10); return n > 0 ? n : null };
  let live = null;

  // --- the bars ---------------------------------------------------------------------------------------------------------
  /** What each bar shows for a need: sizes in GiB by kind, in the order of its rectangles. */
  function sizes(bar, said, people) {
    const d = live.numbers, cache = Math.max(0, said.kv[bar.stage] ?? said.kv[0]);
    const asked = (people || 1) * said.one * d.stages[bar.stage].bytes / 2 ** 30 / d.times / d.replicas;
    const found = { ...bar.sizes, k: Math.min(asked, cache) };
    return { ...found, r: cache - found.k };
  }
  function draw(svg, at, bar, parts) {
    let x = 0, words = $$('text', svg);
    const rects = $$('rect', svg), width = kind => Math.min(100 - x, 100 * parts[kind] / bar.total);
    'xwagokr'.split('').forEach((kind, place) => {
      const wide = Math.max(0, width(kind));
      rects[place].setAttribute('x', x.toFixed(2) + '%'); rects[place].setAttribute('width', wide.toFixed(2) + '%');
      const word = words.find(text => text.dataset.kind === kind);
      if (word) { word.setAttribute('x', (x + wide / 2).toFixed(2) + '%'); word.textContent = wide > 6 ? one(parts[kind]) : '' }
      x += wide;
    });
    const free = Math.max(0, bar.total - Object.values(parts).reduce((a, b) => a + b, 0)), all = { ...parts, f: free };
    svg.setAttribute('aria-label', bar.name + ': ' + Object.entries(all).map(([kind, size]) => live.names[kind] + ' ' + one(size)).join(', ') + ' GiB');
    for (const [kind, size] of Object.entries(all)) {
      const cell = $(`[data-cell="${kind}${at}"]`);
      if (cell && kind !== 'x') cell.textContent = '≈ ' + one(size);
    }
    const used = $(`[data-used="${at}"]`);
    if (used) used.textContent = used.textContent.replace(/[\d.,]+/, one(bar.total - free));
  }
  function move() {
    if (!live?.numbers) return;
    const said = Fit.answer(live.numbers, typed('max_model_len'), typed('people'));
    $$('#bars .bar').forEach((svg, at) => draw(svg, at, live.bars[at], sizes(live.bars[at], said, typed('people'))));
    const room = $('[data-count=people]');
    if (room) room.textContent = number.format(Fit.room(live.numbers, said));
    const context = $('[data-count=context]'), asked = $('[data-asked]');
    if (context) context.textContent = number.format(said.context);
    if (asked && typed('people')) asked.textContent = number.format(typed('people'));
    const note = $('[data-moved]');
    if (note) { note.hidden = said.level === 'fits'; $$('[data-level]', note).forEach(el => { el.hidden = el.dataset.level !== said.level }) }
  }

  // --- the sliders ------------------------------------------------------------------------------------------------------
  /** 1, 1.5, 2, 3, 4, 6 … times `first`, up to and with `last`. */
  function steps(first, last) {
    const found = [];
    for (let n = first; n < last; n *= 2) { found.push(n); if (n > 1 && n * 1.5 < last) found.push(n * 1.5) }
    return [...found, last];
  }
  const short = n => n >= 1024 && n % 1024 === 0 ? number.format(n / 1024) + 'K' : number.format(n);
  /** Where a value stands on a scale of steps, 0 … 1. */
  function place(scale, value) {
    if (value >= scale.at(-1)) return 1;
    const over = scale.findIndex(step => step > value), low = scale[over - 1];
    return over < 1 ? 0 : (over - 1 + (value - low) / (scale[over] - low)) / (scale.length - 1);
  }
  class Slider {
    constructor(box) {
      this.box = box; this.name = box.dataset.slides; this.scale = [];
      const slide = document.createElement('div');
      slide.className = 'slide'; slide.hidden = true;
      slide.innerHTML = '<div class="d-flex sm"><span class="push" data-now></span></div><div class="track"><input type="range" min="0" step="1"><i hidden></i></div><div class="ticks" aria-hidden="true"></div><button type="button" class="btn btn-sm" hidden></button>';
      $('.fieldset-one > input', box).before(slide);
      [this.slide, this.range, this.now, this.mark, this.ticks, this.button] = [slide, $('input', slide), $('[data-now]', slide), $('i', slide), $('.ticks', slide), $('button', slide)];
      this.range.setAttribute('aria-label', box.dataset.name);
      this.range.addEventListener('input', () => { field(this.name).value = this.scale[+this.range.value]; field(this.name).dataset.typed = 'yes' });
      this.button.addEventListener('click', () => { field(this.name).value = this.fits; field(this.name).dispatchEvent(new Event('input', { bubbles: true })) });
    }
    scaled(first, last, usual) {
      const scale = steps(first, Math.max(first + 1, last));
      this.usual = usual;
      if (String(scale) !== String(this.scale)) {
        this.scale = scale; this.range.max = scale.length - 1; this.slide.hidden = false;
        const shown = [...new Set([0, .25, .5, .75, 1].map(part => Math.round(part * (scale.length - 1))))];
        this.ticks.replaceChildren(...shown.map(at => { const el = document.createElement('span'); el.textContent = short(scale[at]); return el }));
      }
      this.follow();
    }
    /** The thumb goes where the field says; an empty field leaves it at what is counted with. */
    follow() {
      if (!this.scale.length) return;
      const value = typed(this.name) ?? this.usual;
      if (document.activeElement !== this.range) this.range.value = Math.round(place(this.scale, value) * (this.scale.length - 1));
      const words = fill(typed(this.name) ? this.box.dataset.value : this.box.dataset.unsaid, { n: number.format(value), p: number.format(Math.max(1, Math.round(value / PAGE_TOKENS))) });
      this.now.textContent = words; this.range.setAttribute('aria-valuetext', words);
    }
    marked(fits) {
      this.fits = fits; this.button.hidden = this.mark.hidden = !fits || !this.scale.length;
      if (!fits) return;
      this.button.textContent = fill(this.box.dataset.mark, { n: number.format(fits) });
      this.mark.style.left = `calc(${place(this.scale, fits)} * (100% - 1rem) + .5rem)`;
    }
  }
  const [context, people] = $$('.slider', form).map(box => new Slider(box));
  function marks() {
    const d = live.numbers, asked = typed('max_model_len') ?? d?.goal;
    context.marked(d ? Fit.longest(d, typed('people')) : live.longest);
    people.marked(d ? Fit.most(d, asked) : live.most);
  }
  /** What each setting would change here, beside it; its plain word where the plan does not say. */
  function effects() {
    for (const el of $$('[data-effect]', form)) {
      el.dataset.plain ??= el.textContent;
      el.textContent = live?.effects?.[el.dataset.effect] ?? el.dataset.plain;
    }
  }
  function answered() {
    const plan = $('#plan'), start = $('#act-deploy');
    if (start) $('#act-enter').disabled = 'never' in plan.dataset;   // the Enter key starts nothing that can only fail
    if (!plan.dataset.fit) { live = null; effects(); return }
    live = JSON.parse(plan.dataset.fit);
    effects();
    if (live.limit) context.scaled(Math.min(1024, live.limit), live.limit, live.numbers?.goal ?? live.limit);
    if (live.most || live.numbers) people.scaled(1, Math.min(4096, Math.max(64, 2 ** Math.ceil(Math.log2(1.25 * (live.most || 1))))), 1);
    follow(true);
  }
  function follow(fresh) {
    if (!live) return;
    context.follow(); people.follow();
    if (live.numbers) move();
    if (!fresh) $$('[data-stale]').forEach(el => { el.hidden = true });   // the panel's answer says it anew
    if (live.numbers || fresh) marks();
  }
  // The listener of the field in panel.js and htmx's own see the same event; the number is in the field before.
  form.addEventListener('input', e => {
    if ($('#check')?.children.length) $('#check').outerHTML = '<div id="check"></div>';   // it was about other settings
    if (e.target.name === 'artifact') live = null;                 // another model: its numbers come with its plan
    follow(false);
  });

  // --- a long list of models: the best of them, the others when someone asks or searches ---------------------------------
  const list = $('#model-list'), more = $('#model-more');
  if (more) {
    list.classList.add('few');
    const all = () => { list.classList.remove('few'); more.remove() }, folded = $$('label', list).filter(label => !label.offsetParent);
    more.hidden = !folded.length;
    more.textContent = fill(more.dataset.text, { n: number.format(folded.length) });
    more.addEventListener('click', () => { all(); $('input:not(:disabled)', folded[0])?.focus() });
    $('#models [type=search]')?.addEventListener('input', all, { once: true });
  }

  // --- the engine's settings: a search looks into every group -----------------------------------------------------------
  form.addEventListener('input', e => {
    if (e.target.matches('#expert [type=search]') && e.target.value) $$('details.settings').forEach(group => { group.open = true });
  });

  // --- proposed changes -------------------------------------------------------------------------------------------------
  function put(name, value) {
    const radio = $(`[type=radio][name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`, form);
    if (radio) { radio.checked = true; return }
    let el = field(name);
    if (!el) { el = document.createElement('input'); el.type = 'hidden'; el.name = name; form.append(el) }
    el.value = value;
    if (el.dataset) el.dataset.typed = 'yes';
  }
  document.addEventListener('click', e => {
    const button = e.target.closest('[data-patch]');
    if (!button) return;
    e.preventDefault();
    for (const [name, value] of Object.entries(JSON.parse(button.value))) put(name, value);
    say(button.dataset.done);
    field('max_model_len').dispatchEvent(new Event('input', { bubbles: true }));
  });
  // What the rest of the settings brings is fitted out as the others are, and searched like them.
  document.addEventListener('htmx:afterSettle', e => { if (e.target.id === 'rest-rows') { effects(); const find = $('#settings-find'); if (find.value) filter(find.closest('[data-filter]')) } if (e.target.id === 'model-list') filter($('#models')); if (e.detail.requestConfig?.elt.id === 'act-check') $('#check')?.scrollIntoView({ block: 'nearest' }); if ($('#plan')?.contains(e.target) || e.target.id === 'plan') answered() });
  answered();
})();
