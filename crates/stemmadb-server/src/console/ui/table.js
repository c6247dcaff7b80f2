// A table of any number of rows: only the visible ones are elements, so a hundred thousand scroll as well as ten.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../lib/dom.js';
import { cell } from '../lib/format.js';

const ROW_HEIGHT = 29;
const AROUND = 12;

// `columns`: [{ name, label, width, align, render }]. `rowKey(row)` names a row, `rowClass(row)` colors it, and
// `onOpen(row)` opens it by a click or Enter. `fit`: as high as its rows, instead of filling the space.
export function Table({ label, columns, rows, rowKey, rowClass, onOpen, empty = 'Nothing here.', fit }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(0);
  const [focusing, setFocusing] = useState(0);

  useEffect(() => {
    const measure = () => box.current && setView({ top: box.current.scrollTop, height: box.current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  // After a key: scroll to the active row and focus it, once it is drawn.
  useLayoutEffect(() => {
    if (focusing === 0) return;
    box.current.querySelector(`[data-row="${active}"]`)?.focus({ preventScroll: true });
  }, [focusing]);

  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - AROUND);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_HEIGHT) + AROUND);
  const shown = rows.slice(first, last);
  const current = Math.min(active, rows.length - 1);

  const move = (to) => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    const { scrollTop, clientHeight } = box.current;
    const at = next * ROW_HEIGHT;
    if (at < scrollTop) box.current.scrollTop = at;
    else if (at + 2 * ROW_HEIGHT > scrollTop + clientHeight) box.current.scrollTop = at + 2 * ROW_HEIGHT - clientHeight;
    setView({ top: box.current.scrollTop, height: clientHeight });
    setActive(next);
    setFocusing((times) => times + 1);
  };
  const onKeyDown = (event) => {
    if (!event.target.dataset.row || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(view.height / ROW_HEIGHT) - 2);
    const to = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: page,
      PageUp: -page,
      Home: -rows.length,
      End: rows.length,
    };
    if (event.key in to) move(current + to[event.key]);
    else if (event.key === 'Enter' && onOpen) onOpen(rows[current]);
    else return;
    event.preventDefault();
  };
  const onClick = (event, row) => {
    if (!onOpen || event.target.closest('a, button, input') || String(getSelection())) return;
    onOpen(row);
  };

  const width = columns.reduce((sum, { width = 160 }) => sum + width, 0);
  return html`<div class=${fit ? 'table-box fit' : 'table-box'} ref=${box} tabindex=${rows.length === 0 ? 0 : undefined} onKeyDown=${onKeyDown}
    onScroll=${() => setView({ top: box.current.scrollTop, height: box.current.clientHeight })}>
    <table aria-label=${label} aria-rowcount=${rows.length + 1} style=${{ minWidth: `${width}px` }}>
      <colgroup>${columns.map(({ name, width }) => html`<col key=${name}
        style=${width ? { width: `${width}px` } : {}} />`)}</colgroup>
      <thead><tr>${columns.map(({ name, label, align }) => html`<th key=${name} scope="col" class=${align || ''}>
        ${label ?? name}</th>`)}</tr></thead>
      <tbody>
        ${first > 0 && html`<tr key="before" aria-hidden="true" style=${{ height: `${first * ROW_HEIGHT}px` }}><td></td>
          </tr>`}
        ${shown.map(
          (
            row,
            index,
          ) => html`<${Row} key=${rowKey ? rowKey(row) : first + index} ...${{ row, columns, onClick, onOpen }}
          at=${first + index} name=${rowClass ? rowClass(row) : ''} active=${first + index === current}
            setActive=${setActive} />`,
        )}
        ${last < rows.length && html`<tr key="after" aria-hidden="true"
          style=${{ height: `${(rows.length - last) * ROW_HEIGHT}px` }}><td></td></tr>`}
      </tbody>
    </table>
    ${rows.length === 0 && html`<div class="empty">${empty}</div>`}
  </div>`;
}

function Row({ row, columns, at, name, active, onClick, onOpen, setActive }) {
  return html`<tr data-row=${at} aria-rowindex=${at + 2} tabindex=${active ? 0 : -1}
    class=${`${name} ${onOpen ? 'opens' : ''}`}
    onFocus=${() => setActive(at)} onClick=${(event) => onClick(event, row)}>
    ${columns.map(({ name, align, render }) => {
      const value = render ? render(row) : cell(row[name]);
      return html`<td key=${name} class=${align || ''} title=${typeof value === 'string' ? value : undefined}>${value}
        </td>`;
    })}
  </tr>`;
}
