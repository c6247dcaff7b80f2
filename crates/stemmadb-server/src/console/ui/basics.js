// Small components that all pages use.

import { Component, html, useEffect, useLayoutEffect, useRef, useState } from '../lib/dom.js';

export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

const PATHS = {
  database:
    'M2.5 4c0-1.4 2.5-2.2 5.5-2.2s5.5.8 5.5 2.2-2.5 2.2-5.5 2.2S2.5 5.4 2.5 4zm0 0v8c0 1.4 2.5 2.2 5.5 2.2s5.5-.8 5.5-2.2V4M2.5 8c0 1.4 2.5 2.2 5.5 2.2s5.5-.8 5.5-2.2',
  documents: 'M3.5 1.8h6l3 3v9.4h-9zM9.5 1.8v3h3M5.7 8h4.6M5.7 10.8h4.6',
  query: 'M7 2.2a4.8 4.8 0 1 0 0 9.6 4.8 4.8 0 0 0 0-9.6zM10.5 10.5l3.7 3.7',
  live: 'M1.8 8.5h2.7l2-5.5 3 10 2-4.5h2.7',
  changes: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h7',
  time: 'M8 1.9a6.1 6.1 0 1 0 0 12.2A6.1 6.1 0 0 0 8 1.9zM8 4.8V8l2.3 1.6',
  indexes: 'M2.5 3h11M4.5 6.4h9M6.5 9.8h7M8.5 13.2h5',
  access: 'M4 7.2h8v6.3H4zM5.6 7.2V5a2.4 2.4 0 0 1 4.8 0v2.2',
  settings: 'M2 4.5h7M12.5 4.5H14M2 11.5h1.5M7 11.5h7M10.7 2.8v3.4M5.3 9.8v3.4',
  users: 'M8 8.2a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM2.8 13.8c.4-2.4 2.5-3.8 5.2-3.8s4.8 1.4 5.2 3.8',
  tokens: 'M5.2 7.6a2.9 2.9 0 1 0 0 5.8 2.9 2.9 0 0 0 0-5.8zM7.3 8.4 13.5 2.2M10.6 5.1l2 2',
  roles: 'M8 1.8l5.3 2v4c0 3-2.2 5.3-5.3 6.4-3.1-1.1-5.3-3.4-5.3-6.4v-4z',
  tasks: 'M2.5 4l1.2 1.2L5.8 3M2.5 8.3l1.2 1.2 2.1-2.2M2.5 12.6l1.2 1.2 2.1-2.2M8 4.4h5.5M8 8.7h5.5M8 13h5.5',
  topologies: 'M8 1.6a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 0 0 0-3.4zM3.4 10.6a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 0 0 0-3.4zM12.6 10.6a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 0 0 0-3.4zM7.1 4.8l-2.9 6M8.9 4.8l2.9 6M5.1 12.3h5.8',
  federations: 'M2.2 2.4h5v4h-5zM8.8 2.4h5v4h-5zM5.5 9.8h5v4h-5zM4.7 6.4v1.7h6.6V6.4M8 8.1v1.7',
  triggers: 'M9 1.6 3.6 9H8l-1 5.4L12.4 7H8z',
  log: 'M3 2.2h10v11.6H3zM5.4 5.2h5.2M5.4 8h5.2M5.4 10.8h3',
  metrics: 'M2.2 13.8h11.6M4 11V7.5M7 11V3.5M10 11V5.8M13 11V8.6',
  menu: 'M2 4h12M2 8h12M2 12h12',
  close: 'M3.5 3.5l9 9M12.5 3.5l-9 9',
  plus: 'M8 3v10M3 8h10',
  stemma:
    'M8 14V9.2C8 6.6 4.2 7.6 4.2 4.8M8 9.2c0-2.6 3.8-1.6 3.8-4.4M4.2 1.9a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8zM11.8 1.9a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8z',
  theme: 'M8 1.9a6.1 6.1 0 1 0 0 12.2V1.9z',
  out: 'M6.5 2.5h-4v11h4M6.2 8h7.6M11 5l3 3-3 3',
};

export function Logo() {
  return html`<svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7" class="logo-ground" />
    <g class="logo-lines"><path d="M16 25V17C16 12 9 14 9 9" /><path d="M16 17C16 12 23 14 23 9" /></g>
    <g class="logo-dots"><circle cx="16" cy="25" r="3" /><circle cx="9" cy="8" r="3" /><circle cx="23" cy="8" r="3" />
      </g>
  </svg>`;
}

export const Key = ({ children }) => html`<kbd>${children}</kbd>`;

// An error with what to do, in a region that screen readers announce.
export function ErrorNote({ error, children }) {
  if (!error) return null;
  const forbidden = error.status === 403 || error.status === 401;
  return html`<div class=${`note ${forbidden ? 'warn' : 'bad'}`} role="alert">
    <strong>${forbidden ? 'Not allowed' : error.status === 404 ? 'Not found' : 'Error'}</strong>
    <span>${error.message}</span> ${children}
  </div>`;
}

export const Note = ({ kind = '', children }) => html`<div class=${`note ${kind}`} role="status">${children}</div>`;
export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;
export const Loading = ({ what = 'Loading' }) =>
  html`<div class="loading" role="status"><span class="spinner"></span>${what} …</div>`;

// What a load returned, or its state.
export function Loaded({ load, children }) {
  if (load.error) {
    return html`<${ErrorNote} error=${load.error}><button onClick=${load.reload}>Try again</button><//>`;
  }
  if (load.data === undefined) return html`<${Loading} />`;
  return children(load.data);
}

// The head of a page: title, facts and actions.
export function Head({ title, path = [], facts = [], children }) {
  return html`<header class="head">
    <div class="head-title">
      ${
        path.length > 0 &&
        html`<nav class="crumbs" aria-label="Path">
        ${path.map(([text, href]) => html`<a href=${href}>${text}</a><span aria-hidden="true">/</span>`)}
      </nav>`
      }
      <h1 title=${title}>${title}</h1>
    </div>
    ${
      facts.length > 0 &&
      html`<dl class="facts">
      ${facts.map(([name, value, title]) => html`<div title=${title}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>`
    }
    ${children && html`<div class="actions">${children}</div>`}
  </header>`;
}

export function Field({ label, hint, children }) {
  return html`<div class="field"><label><span>${label}</span>${children}</label>${hint && html`<small>${hint}</small>`}
    </div>`;
}

// A choice of one of several, as a row of buttons.
export function Choice({ label, value, options, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([name, text]) => html`<button type="button" key=${name} aria-pressed=${value === name}
      onClick=${() => onChange(name)}>${text}</button>`,
    )}
  </div>`;
}

// A modal dialog. Escape and the close button call `onClose`.
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef();
  useLayoutEffect(() => {
    const dialog = ref.current;
    if (!dialog.open) dialog.showModal();
    return () => dialog.open && dialog.close();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${ref} class=${wide ? 'dialog wide' : 'dialog'} aria-label=${title} onCancel=${cancel}>
    <div class="dialog-head"><h2>${title}</h2>
      <button type="button" class="plain" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
    </div>
    ${children}
  </dialog>`;
}

// A dialog with a form: `submit` is asynchronous; its error is shown and the dialog stays.
export function FormDialog({ title, action, danger, onClose, submit, children, wide }) {
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await submit(new FormData(event.target));
      onClose();
    } catch (error) {
      setError(error);
    }
    setBusy(false);
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide}>
    <form onSubmit=${send}>
      <div class="dialog-body">${children}<${ErrorNote} error=${error} /></div>
      <div class="dialog-foot">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${danger ? 'danger' : 'primary'} disabled=${busy}>${action}</button>
      </div>
    </form>
  <//>`;
}

// A confirmation; with `word`, the user has to type it.
export function Confirm({ title, action, word, onClose, submit, children }) {
  const [typed, setTyped] = useState('');
  return html`<${FormDialog} title=${title} action=${action} danger onClose=${onClose}
    submit=${async () => {
      if (word && typed !== word) throw new Error(`Type ${word} to confirm.`);
      await submit();
    }}>
    <div>${children}</div>
    ${
      word &&
      html`<${Field} label=${`Type ${word} to confirm`}>
      <input autofocus autocomplete="off" spellcheck="false" value=${typed}
        onInput=${(event) => setTyped(event.target.value)} />
    <//>`
    }
  <//>`;
}

// Shows an error of the page instead of breaking the whole console.
export class Boundary extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }, { error }) {
    if (!error) return children;
    return html`<${ErrorNote} error=${new Error(`This page failed: ${error.message}`)}><button
      onClick=${() => this.setState({ error: undefined })}>Try again</button><//>`;
  }
}

// A short message that goes away by itself.
export function useToast() {
  const [message, setMessage] = useState(null);
  useEffect(() => {
    if (!message) return undefined;
    const timer = setTimeout(() => setMessage(null), 4000);
    return () => clearTimeout(timer);
  }, [message]);
  const toast = html`<div class="toasts" role="status" aria-live="polite">
    ${message && html`<div class="toast">${message}</div>`}
  </div>`;
  return [toast, setMessage];
}
