// An editor of JSON: a text area over a highlighted copy of its text, with line numbers and completion. The text is
// the user's: nothing is reformatted or rounded unless asked.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { pretty, tokens } from '../lib/json.js';

// Longer texts are edited without colors and line numbers, so that typing stays quick.
const COLORED_MAX = 100_000;

// Highlighted JSON, for reading. Long texts are shown without colors.
export function Highlighted({ text }) {
  const parts = useMemo(() => (text.length > COLORED_MAX ? null : tokens(text)), [text]);
  if (!parts) return text;
  return parts.map(({ kind, text }) =>
    kind === 'space' || kind === 'mark' ? text : html`<span class=${`t-${kind}`}>${text}</span>`,
  );
}

export const Code = ({ text, label }) =>
  html`<pre class="code" tabindex="0" role="region" aria-label=${label}><${Highlighted} text=${text} /></pre>`;

// Replaces a range of the text so that the browser's undo knows it.
function insert(area, from, to, text) {
  area.focus();
  area.setSelectionRange(from, to);
  if (!document.execCommand('insertText', false, text)) {
    area.setRangeText(text, from, to, 'end');
    area.dispatchEvent(new Event('input', { bubbles: true }));
  }
}

// `complete(text, at)` returns { from, to, items: [{ label, detail, text }] } or null. `onRun` is called by Ctrl+Enter.
export function Editor({ label, value, onChange, onRun, complete, error, rows = 12, fill, readOnly, autofocus }) {
  const area = useRef();
  const under = useRef();
  const gutter = useRef();
  const [menu, setMenu] = useState(null);
  const colored = value.length <= COLORED_MAX;
  const lines = useMemo(() => (colored ? value.split('\n').length : 0), [value]);

  const scroll = () => {
    if (!under.current) return;
    under.current.style.transform = `translate(${-area.current.scrollLeft}px, ${-area.current.scrollTop}px)`;
    gutter.current.style.transform = `translateY(${-area.current.scrollTop}px)`;
  };
  useLayoutEffect(scroll, [value]);
  useEffect(() => {
    if (autofocus) area.current.focus();
  }, []);

  const suggest = () => {
    if (!complete) return;
    const { selectionStart: at, selectionEnd: end, value } = area.current;
    const found = at === end ? complete(value, at) : null;
    if (!found || found.items.length === 0) {
      setMenu(null);
      return;
    }
    const before = value.slice(0, found.from).split('\n');
    setMenu({ ...found, chosen: 0, row: before.length, column: before.at(-1).length });
  };
  const accept = (item) => {
    const range = menu;
    setMenu(null);
    insert(area.current, range.from, range.to, item.text);
  };
  const onInput = (event) => {
    onChange(event.target.value);
    suggest();
  };
  const onKeyDown = (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === 'Enter' && onRun) {
      event.preventDefault();
      setMenu(null);
      onRun();
    } else if (event.ctrlKey && event.key === ' ') {
      event.preventDefault();
      suggest();
    } else if (menu && (event.key === 'ArrowDown' || event.key === 'ArrowUp')) {
      event.preventDefault();
      const step = event.key === 'ArrowDown' ? 1 : menu.items.length - 1;
      setMenu({ ...menu, chosen: (menu.chosen + step) % menu.items.length });
    } else if (menu && (event.key === 'Enter' || event.key === 'Tab')) {
      event.preventDefault();
      accept(menu.items[menu.chosen]);
    } else if (menu && event.key === 'Escape') {
      event.preventDefault();
      event.stopPropagation();
      setMenu(null);
    } else if (event.key === 'Enter' && !event.ctrlKey && !event.metaKey && !readOnly) {
      event.preventDefault();
      const { selectionStart: from, selectionEnd: to, value } = area.current;
      const line = value.slice(value.lastIndexOf('\n', from - 1) + 1, from);
      const indent = /^ */.exec(line)[0];
      const opens = /[{[]\s*$/.test(line);
      const closes = opens && /^\s*[}\]]/.test(value.slice(to, to + 1));
      insert(area.current, from, to, `\n${indent}${opens ? '  ' : ''}${closes ? `\n${indent}` : ''}`);
      if (closes) {
        const at = area.current.selectionStart - indent.length - 1;
        area.current.setSelectionRange(at, at);
      }
    }
  };
  const style = fill ? {} : { height: `${rows * 19 + 18}px` };
  return html`<div class=${`editor ${fill ? 'fill' : ''} ${colored ? '' : 'uncolored'} ${error ? 'wrong' : ''}`}
    style=${style}>
    ${
      colored &&
      html`<div class="gutter" aria-hidden="true"><div ref=${gutter}>
      ${Array.from({ length: lines }, (_, at) => html`<div class=${error?.line === at + 1 ? 'wrong' : ''}>${at + 1}
        </div>`)}
    </div></div>`
    }
    <div class="editor-text">
      ${colored && html`<pre aria-hidden="true"><code ref=${under}><${Highlighted} text=${value} />${'\n'}</code>
        </pre>`}
      <textarea ref=${area} aria-label=${label} aria-invalid=${!!error} spellcheck="false" autocapitalize="off"
        autocomplete="off"
        wrap="off" readonly=${readOnly} value=${value} onInput=${onInput} onKeyDown=${onKeyDown} onScroll=${scroll}
        onClick=${() => setMenu(null)} onBlur=${() => setMenu(null)}></textarea>
      ${menu && html`<${Menu} menu=${menu} area=${area.current} accept=${accept} />`}
    </div>
  </div>`;
}

function Menu({ menu, area, accept }) {
  const ref = useRef();
  useLayoutEffect(
    () => ref.current.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' }),
    [menu],
  );
  const left = Math.max(0, Math.min(menu.column * 7.83 + 10 - area.scrollLeft, area.clientWidth - 240));
  const position = { left: `${left}px`, top: `${menu.row * 19 + 9 - area.scrollTop}px` };
  return html`<ul class="completion" role="listbox" aria-label="Completions" ref=${ref} style=${position}>
    ${menu.items.map(
      (item, at) => html`<li key=${item.label} role="option" aria-selected=${at === menu.chosen}
      onMouseDown=${(event) => {
        event.preventDefault();
        accept(item);
      }}><span>${item.label}</span><small>${item.detail}</small></li>`,
    )}
  </ul>`;
}

export const format = pretty;
