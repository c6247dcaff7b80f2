// The page that the address names: `#/db/NAME/page/ITEM?parameters`. Addresses can be shared and bookmarked.

import { store } from './dom.js';

// Counts visits by a link or by hand. Each of them starts its page with empty state.
let visit = 0;
// The address that the route was read from.
let known = '';

// The page that the address names now, also one whose visit has not begun.
export function visited() {
  const [path, query = ''] = location.hash.replace(/^#/, '').split('?');
  const parts = path
    .split('/')
    .filter((part) => part !== '')
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  const parameters = Object.fromEntries(new URLSearchParams(query));
  if (parts[0] !== 'db' || !parts[1]) return { page: parts[0] || 'databases', item: parts[1], parameters, visit };
  return { database: parts[1], page: parts[2] || 'documents', item: parts[3], parameters, visit };
}

function follow() {
  known = location.hash;
  return visited();
}

export const route = store(follow());
addEventListener('hashchange', () => {
  visit += 1;
  route.set(follow());
});

// The address of a page.
export function address(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join('/')}`;
}
export const databaseAddress = (database, page, ...rest) => address('db', database, ...(page ? [page, ...rest] : []));

export function go(hash, replace = false) {
  if (replace) {
    history.replaceState(null, '', hash);
    route.set(follow());
  } else {
    location.hash = hash;
  }
}

// Sets parameters of the current address without a new entry in the history. Does nothing if another address is being
// visited, which the page that asks does not know yet.
export function setParameters(parameters) {
  if (location.hash !== known) return;
  const [path, query = ''] = location.hash.split('?');
  const all = new URLSearchParams(query);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined || value === null || value === '') all.delete(name);
    else all.set(name, value);
  }
  const text = all.toString();
  history.replaceState(null, '', text ? `${path}?${text}` : path);
  route.set(follow());
}
