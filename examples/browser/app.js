// Things to do. They are kept in this browser, whether there is a network or not; once it is connected, what changes here or there is
// brought to the other side by PouchDB as soon as it can be.
'use strict';

const tasks = new PouchDB('tasks');
const place = (selector) => document.querySelector(selector);

function say(state, text) {
  place('#status').dataset.state = state;
  place('#status').textContent = text;
}

// What is there

let shown = Promise.resolve();

// One after the other, so that the last that is shown is the last that was read.
function show() {
  shown = shown.then(showAll).catch((error) => say('refused', `Can't be shown: ${error.message}`));
}

async function showAll() {
  const { rows } = await tasks.allDocs({ include_docs: true, conflicts: true });
  const all = rows.map((row) => row.doc).filter((doc) => typeof doc.text === 'string');
  all.sort((a, b) => String(a.added).localeCompare(String(b.added)));
  const list = place('#tasks');
  const items = new Map([...list.children].map((item) => [item.dataset.id, item]));
  for (const [at, task] of all.entries()) {
    const item = items.get(task._id) ?? newItem(task._id);
    items.delete(task._id);
    if (list.children[at] !== item) list.insertBefore(item, list.children[at] ?? null);
    await fill(item, task);
  }
  for (const gone of items.values()) gone.remove();
}

function newItem(id) {
  const item = place('#task').content.firstElementChild.cloneNode(true);
  const [done, text] = item.querySelectorAll('input');
  item.dataset.id = id;
  done.onchange = () => change(id, { done: done.checked });
  text.onchange = () => change(id, { text: text.value });
  text.onblur = show;
  item.querySelector('.remove').onclick = () => change(id, { _deleted: true });
  return item;
}

async function fill(item, task) {
  const [done, text] = item.querySelectorAll('input');
  item.className = task.done ? 'done' : '';
  done.checked = task.done;
  // Replicated changes do not overwrite the text that is being typed.
  if (document.activeElement !== text) text.value = task.text;
  await showVersions(item.querySelector('.versions'), task);
}

// Two changed it without knowing of each other. Both versions are kept, and all devices show the same one, until somebody decides.
async function showVersions(row, task) {
  const others = await Promise.all((task._conflicts ?? []).map((rev) => tasks.get(task._id, { rev })));
  row.hidden = others.length === 0;
  const choices = [task, ...others].map((version) => {
    const choice = document.createElement('button');
    choice.textContent = `${version.done ? '☑' : '☐'} ${version.text}`;
    choice.onclick = () => decide(task, others, version);
    return choice;
  });
  row.replaceChildren('Changed twice. Which is right? ', ...choices);
}

// What is changed

function add(text) {
  return tasks.post({ text, done: false, added: new Date().toISOString() });
}

async function change(id, changes) {
  try {
    await tasks.put({ ...(await tasks.get(id)), ...changes });
  } catch (error) {
    if (error.name !== 'conflict') throw error;
    await change(id, changes); // Something arrived between reading and writing.
  }
}

function decide(winner, losers, { text, done }) {
  const ends = losers.map(({ _id, _rev }) => ({ _id, _rev, _deleted: true }));
  const { _conflicts, ...kept } = winner;
  return tasks.bulkDocs([{ ...kept, text, done }, ...ends]);
}

// Where it is brought to

let server, sync;

async function connect({ url, name, password }) {
  sync?.cancel();
  const asked = server = new PouchDB(url, { auth: { username: name, password } });
  say('active', `Connecting to ${url} …`);
  // Who is refused has to know; without a network, PouchDB tries again by itself.
  const refusal = await server.info().then(() => null, (error) => (error.status === 401 || error.status === 403 ? error : null));
  if (asked !== server) return;
  if (refusal) return say('refused', `Not connected: ${refusal.reason}`);
  sync = tasks.sync(server, { live: true, retry: true })
    .on('active', () => say('active', 'Something is on its way …'))
    .on('paused', (error) => (error ? say('offline', 'Offline. Your changes are saved and sent later.') : say('same', `The same as ${url}.`)))
    .on('denied', ({ doc }) => say('refused', `The server refused a change: ${doc.message}`))
    .on('error', (error) => say('refused', `Not connected: ${error.reason || error.message || error}`));
}

place('#add').onsubmit = (event) => {
  event.preventDefault();
  const { text } = event.target.elements;
  add(text.value);
  text.value = '';
};

// Until the tab is closed, a reload does not ask for the password again.
place('#connect').onsubmit = (event) => {
  event.preventDefault();
  const settings = Object.fromEntries(new FormData(event.target));
  sessionStorage.setItem('server', JSON.stringify(settings));
  connect(settings);
};

tasks.changes({ live: true, since: 'now' }).on('change', show);
show();
const remembered = JSON.parse(sessionStorage.getItem('server'));
if (remembered) {
  for (const [name, value] of Object.entries(remembered)) place('#connect').elements[name].value = value;
  connect(remembered);
}
