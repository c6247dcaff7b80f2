// "Go to": finds pages, databases and documents by their beginnings.

import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { get, isAdmin, segment } from '../lib/api.js';
import { address, databaseAddress, go } from '../lib/router.js';
import { Dialog } from './basics.js';

const FOUND_MAX = 8;

async function search(text, here, who, pages, serverPages, signal) {
  const lower = text.toLowerCase();
  const fits = (title) => title.toLowerCase().includes(lower);
  const found = [];
  if (here.database) {
    found.push(
      ...pages
        .filter(([, title]) => fits(title))
        .map(([name, title]) => ({ kind: 'page', text: title, href: databaseAddress(here.database, name) })),
    );
  }
  found.push(
    ...serverPages
      .filter(([, title]) => fits(title))
      .map(([name, title]) => ({ kind: 'page', text: title, href: address(name) })),
  );
  if (isAdmin(who)) {
    const names = await get('/_all_dbs', {}, { signal, quiet: true }).catch(() => []);
    found.push(
      ...names
        .filter(fits)
        .slice(0, FOUND_MAX)
        .map((name) => ({ kind: 'database', text: name, href: databaseAddress(name) })),
    );
  }
  if (here.database && text) {
    const range = { startkey: JSON.stringify(text), endkey: JSON.stringify(`${text}\ufff0`), limit: FOUND_MAX };
    const { rows } = await get(`/${segment(here.database)}/_all_docs`, range, { signal, quiet: true }).catch(() => ({
      rows: [],
    }));
    found.push(
      ...rows.map(({ id }) => ({ kind: 'document', text: id, href: databaseAddress(here.database, 'doc', id) })),
    );
  }
  return found;
}

export function Palette({ here, who, pages, serverPages, close }) {
  const [text, setText] = useState('');
  const [found, setFound] = useState([]);
  const [chosen, setChosen] = useState(0);
  const list = useRef();
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      const next = await search(text, here, who, pages, serverPages, abort.signal).catch(() => []);
      if (abort.signal.aborted) return;
      setFound(next);
      setChosen(0);
    }, 60);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [text]);
  useEffect(() => list.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest' }), [chosen]);
  const open = (item) => {
    close();
    go(item.href);
  };
  const onKeyDown = (event) => {
    if (found.length === 0) return;
    if (event.key === 'ArrowDown') setChosen((chosen + 1) % found.length);
    else if (event.key === 'ArrowUp') setChosen((chosen + found.length - 1) % found.length);
    else if (event.key === 'Enter') open(found[chosen]);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title="Go to" onClose=${close}>
    <div class="palette">
      <input role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label="Page, database or document"
        autofocus autocomplete="off"
        spellcheck="false" placeholder="Page, database or document" value=${text}
          onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} />
      <ul id="palette-list" role="listbox" aria-label="Found" ref=${list}>
        ${found.map(
          (
            item,
            at,
          ) => html`<li key=${item.href} role="option" aria-selected=${at === chosen} onClick=${() => open(item)}>
          <span>${item.text}</span><small>${item.kind}</small></li>`,
        )}
      </ul>
    </div>
  <//>`;
}
