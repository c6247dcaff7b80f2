// The console: its frame, and the page that the address names.

import { html, render, remember, remembered, useEffect, useRef, usePolling, useState, useStore } from './lib/dom.js';
import {
  isAdmin,
  loadSession,
  logIn,
  logOut,
  loginQuestion,
  askLogin,
  reachable,
  sessionName,
  user,
} from './lib/api.js';
import { address, databaseAddress, go, route } from './lib/router.js';
import { Boundary, Dialog, Field, Icon, Key, Logo } from './ui/basics.js';
import { Palette } from './ui/palette.js';
import { Databases } from './pages/databases.js';
import { Documents } from './pages/documents.js';
import { Document } from './pages/document.js';
import { Query } from './pages/query.js';
import { Live } from './pages/live.js';
import { Changes } from './pages/changes.js';
import { Time } from './pages/time.js';
import { Indexes } from './pages/indexes.js';
import { AccessPage } from './pages/access.js';
import { Settings } from './pages/settings.js';
import { Triggers } from './pages/triggers.js';
import { Users } from './pages/users.js';
import { Tokens } from './pages/tokens.js';
import { Roles } from './pages/roles.js';
import { Tasks } from './pages/tasks.js';
import { Topologies } from './pages/topologies.js';
import { Federations } from './pages/federations.js';
import { Metrics } from './pages/metrics.js';
import { Log } from './pages/log.js';

// The pages of a database: name, title, icon, component.
const OF_DATABASE = [
  ['documents', 'Documents', 'documents', Documents],
  ['query', 'Query', 'query', Query],
  ['live', 'Live', 'live', Live],
  ['changes', 'Changes', 'changes', Changes],
  ['time', 'Time', 'time', Time],
  ['indexes', 'Views and indexes', 'indexes', Indexes],
  ['triggers', 'Triggers', 'triggers', Triggers],
  ['access', 'Access', 'access', AccessPage],
  ['settings', 'Size and care', 'settings', Settings],
];
// The pages of the server; the second group is for administrators.
const OF_SERVER = [['databases', 'Databases', 'database', Databases]];
const OF_ADMIN = [
  ['users', 'Users', 'users', Users],
  ['roles', 'Roles', 'roles', Roles],
  ['tokens', 'Tokens', 'tokens', Tokens],
  ['tasks', 'Tasks and backups', 'tasks', Tasks],
  ['topologies', 'Topologies', 'topologies', Topologies],
  ['federations', 'Federations', 'federations', Federations],
  ['log', 'Log', 'log', Log],
];
const METRICS = ['metrics', 'Metrics', 'metrics', Metrics];

function serverPages(who) {
  const mayMeasure = isAdmin(who) || who.roles.includes('_metrics');
  return [...OF_SERVER, ...(isAdmin(who) ? OF_ADMIN : []), ...(mayMeasure ? [METRICS] : [])];
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function Link({ href, icon, current, children }) {
  return html`<a href=${href} aria-current=${current ? 'page' : undefined}><${Icon} name=${icon} /><span>${children}
    </span></a>`;
}

function Sidebar({ who, here, open, close }) {
  const [theme, setThemeName] = useState(remembered('theme', ''));
  const turn = () => {
    const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    const next = dark ? 'light' : 'dark';
    setThemeName(next);
    remember('theme', next);
    setTheme(next);
  };
  return html`<nav id="sidebar" class=${open ? 'sidebar open' : 'sidebar'} aria-label="Console"
    onClick=${(event) => event.target.closest('a') && close()}>
    <a class="brand" href="#/"><${Logo} /><span>Stemma</span></a>
    <div class="side-group">
      ${serverPages(who).map(
        ([name, title, icon]) => html`<${Link} key=${name} href=${address(name)} icon=${icon}
        current=${!here.database && here.page === name}>${title}<//>`,
      )}
    </div>
    ${
      here.database &&
      html`<div class="side-group">
      <h2 title=${here.database}>${here.database}</h2>
      ${OF_DATABASE.map(
        ([name, title, icon]) => html`<${Link} key=${name} href=${databaseAddress(here.database, name)} icon=${icon}
        current=${here.page === name || (name === 'documents' && here.page === 'doc')}>${title}<//>`,
      )}
    </div>`
    }
    <div class="side-foot">
      <div class="who">${
        who.name
          ? html`<span title=${who.roles.join(', ')}><${Icon} name="users" />${who.name}</span>
          <button class="plain" title="Log out" aria-label="Log out" onClick=${logOut}><${Icon} name="out" /></button>`
          : html`<button onClick=${() => askLogin('').catch(() => {})}>Log in</button>`
      }
        <button class="plain" title="Dark or light" aria-label="Dark or light" onClick=${turn}><${Icon} name="theme" />
          </button>
      </div>
      <p class="hints"><${Key}>Ctrl K<//> go to, <${Key}>?<//> keys</p>
    </div>
  </nav>`;
}

function LoginDialog() {
  const question = useStore(loginQuestion);
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  // A login in another tab of the browser is one here, too.
  usePolling(
    async () => {
      if (question?.name && (await sessionName()) === question.name) question.done();
    },
    1500,
    [question],
  );
  if (!question) return null;
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setBusy(true);
    setError(undefined);
    try {
      await logIn(form.get('name'), form.get('password'));
      question.done();
    } catch (error) {
      setError(error);
    }
    setBusy(false);
  };
  return html`<${Dialog} title="Log in" onClose=${question.cancel}>
    <form onSubmit=${submit}>
      <div class="dialog-body">
        ${question.reason && html`<p>${question.reason}</p>`}
        <${Field} label="Name"><input name="name" autocomplete="username" required autofocus=${!question.name}
          defaultValue=${question.name} /><//>
        <${Field} label="Password"><input name="password" type="password" autocomplete="current-password" required
          autofocus=${!!question.name} /><//>
        ${error && html`<div class="note bad" role="alert">${error.message}</div>`}
      </div>
      <div class="dialog-foot"><button type="button" onClick=${question.cancel}>Cancel</button>
        <button class="primary" disabled=${busy}>Log in</button></div>
    </form>
  <//>`;
}

const KEYS = [
  ['Ctrl K', 'Go to a database, a page or a document'],
  ['/', 'The filter or the editor of the page'],
  ['Ctrl Enter', 'Run the query'],
  ['Ctrl S', 'Save the document'],
  ['Ctrl Space', 'Complete a field, an operator or a value'],
  ['↑ ↓ j k', 'The next row of a table; Page Up, Page Down, Home and End as well'],
  ['Enter', 'Open the row'],
  ['g d', 'Documents of this database; g q query, g l live, g c changes, g t time'],
  ['Escape', 'Close a dialog'],
];

function Keys({ close }) {
  return html`<${Dialog} title="Keys" onClose=${close}>
    <dl class="keys dialog-body">${KEYS.map(([keys, what]) => html`<div><dt><${Key}>${keys}<//></dt><dd>${what}</dd>
      </div>`)}</dl>
  <//>`;
}

const isTyping = (target) => target.closest('input, textarea, select, dialog, [contenteditable]');
const GO = { d: 'documents', q: 'query', l: 'live', c: 'changes', t: 'time', i: 'indexes' };

// Keys that work everywhere. `open` shows a dialog.
function useKeys(open) {
  const prefix = useRef(false);
  useEffect(() => {
    const onKeyDown = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault();
        open('palette');
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      const here = route.get();
      if (prefix.current && here.database && GO[event.key]) go(databaseAddress(here.database, GO[event.key]));
      else if (event.key === '?') open('keys');
      else if (event.key === '/') {
        const target = document.querySelector('main [data-slash], main textarea');
        if (target) {
          event.preventDefault();
          target.focus();
        }
      }
      prefix.current = event.key === 'g';
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  }, []);
}

function Page({ here, who }) {
  if (here.database) {
    if (here.page === 'doc')
      return html`<${Document} database=${here.database} id=${here.item} parameters=${here.parameters} />`;
    const [, , , component] = OF_DATABASE.find(([name]) => name === here.page) ?? OF_DATABASE[0];
    return html`<${component} database=${here.database} item=${here.item} parameters=${here.parameters} who=${who} />`;
  }
  const [, , , component] = serverPages(who).find(([name]) => name === here.page) ?? OF_SERVER[0];
  return html`<${component} item=${here.item} parameters=${here.parameters} who=${who} />`;
}

function App() {
  const who = useStore(user);
  const here = useStore(route);
  const answers = useStore(reachable);
  const [menu, setMenu] = useState(false);
  const [shown, setShown] = useState(null);
  const main = useRef();
  useKeys(setShown);
  const place = `${here.database ?? ''} ${here.page} ${here.item ?? ''} ${here.visit}`;
  useEffect(() => {
    const title = [here.item, here.page === 'doc' ? '' : here.page, here.database].filter(Boolean).join(' · ');
    document.title = `${title} – Stemma`;
    if (!document.querySelector('dialog[open]')) main.current?.focus({ preventScroll: true });
    if (main.current) main.current.scrollTop = 0;
  }, [place]);
  if (!who) return html`<p class="boot">Connecting …</p>`;
  const key = `${who.name} ${place}`;
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      main.current.focus();
    }}>Skip to the content</a>
    <header class="topbar">
      <button class="plain" aria-label="Menu" aria-expanded=${menu} aria-controls="sidebar"
        onClick=${() => setMenu(!menu)}><${Icon} name="menu" /></button>
      <a class="brand" href="#/"><${Logo} /><span>${here.database ?? 'Stemma'}</span></a>
    </header>
    <${Sidebar} who=${who} here=${here} open=${menu} close=${() => setMenu(false)} />
    ${menu && html`<div class="shade" onClick=${() => setMenu(false)}></div>`}
    <main id="main" ref=${main} tabindex="-1">
      ${!answers && html`<div class="banner" role="alert"><span class="spinner">
        </span>The server does not answer. Waiting for it; nothing that you typed is lost.</div>`}
      <${Boundary} key=${key}><${Page} here=${here} who=${who} /><//>
    </main>
    <${LoginDialog} />
    ${shown === 'palette' && html`<${Palette} here=${here} who=${who} pages=${OF_DATABASE}
      serverPages=${serverPages(who)} close=${() => setShown(null)} />`}
    ${shown === 'keys' && html`<${Keys} close=${() => setShown(null)} />`}`;
}

// An address that `stemma console` prints logs in by itself. The fragment is never sent to a server, and it is removed
// from the address at once.
async function start() {
  setTheme(remembered('theme', ''));
  const given = /^#login=([^:]*):(.*)$/s.exec(location.hash);
  if (given) {
    history.replaceState(null, '', '#/');
    route.set({ page: 'databases', parameters: {}, visit: 0 });
  }
  render(html`<${App} />`, document.getElementById('app'));
  try {
    if (given) await logIn(decodeURIComponent(given[1]), decodeURIComponent(given[2]));
    const who = await loadSession();
    if (!who.name) await askLogin('').catch(() => {});
  } catch (error) {
    if (!user.get()) user.set({ name: null, roles: [] });
    askLogin(error.message).catch(() => {});
  }
}

start();
