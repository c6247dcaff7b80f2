// A document: its contents in an editor, its revisions as a tree, and its attachments.

import { html, useEffect, useLayoutEffect, useRef, useState } from '../lib/dom.js';
import { ask, documentPath, ensureSession, respond, segment, withQuery } from '../lib/api.js';
import { bytes, count, revision } from '../lib/format.js';
import { contents } from '../lib/diff.js';
import { isObject, parse, stringify } from '../lib/json.js';
import { databaseAddress, go, setParameters, visited } from '../lib/router.js';
import { Choice, Confirm, ErrorNote, Field, Head, Icon, Loading, Note, useToast } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Attachments } from './attachments.js';
import { Differences } from './differences.js';
import { Stemma } from './stemma.js';

// A document with more bytes is shown field by field; it can be edited as text on demand.
const EDITED_BYTES_MAX = 1_000_000;

// Edits that are not saved, by database and id: they survive a look at another page.
const drafts = new Map();
addEventListener('beforeunload', (event) => {
  if (drafts.size > 0) event.preventDefault();
});

async function read(database, id, parameters = {}) {
  const text = await (
    await respond('GET', withQuery(documentPath(database, id), { conflicts: true, ...parameters }))
  ).text();
  return { document: parse(text), length: text.length };
}

const base = (document) => ({
  rev: document._rev,
  attachments: document._attachments,
  text: stringify(contents(document), 2),
  conflicts: document._conflicts ?? [],
});

export function Document({ database, id, parameters }) {
  const isNew = id === undefined;
  const key = `${database}/${id ?? ''}`;
  const draft = useRef(drafts.get(key));
  const [read_, setRead] = useState(isNew ? { rev: undefined, text: '{\n  \n}', conflicts: [] } : undefined);
  const [text, setText] = useState(draft.current?.text ?? (isNew ? '{\n  \n}' : ''));
  const [name, setName] = useState('');
  const [error, setError] = useState();
  const [wrong, setWrong] = useState();
  const [conflict, setConflict] = useState();
  const [large, setLarge] = useState();
  const [busy, setBusy] = useState(false);
  const [dialog, setDialog] = useState();
  const [toast, say] = useToast();
  const tab = parameters.tab ?? 'contents';
  const changed = read_ !== undefined && text !== read_.text;

  const load = async () => {
    setError(undefined);
    setConflict(undefined);
    try {
      const { document, length } = await read(database, id);
      const next = base(document);
      setRead(draft.current ? { ...next, rev: draft.current.rev, text: draft.current.base } : next);
      if (!draft.current) setText(next.text);
      if (length > EDITED_BYTES_MAX) setLarge(document);
      draft.current = undefined;
    } catch (error) {
      setError(error);
    }
  };
  useEffect(() => {
    if (!isNew) load();
  }, []);
  // Before anything else happens, such as leaving the page.
  useLayoutEffect(() => {
    if (changed) drafts.set(key, { text, rev: read_.rev, base: read_.text });
    else drafts.delete(key);
  }, [changed, text, read_]);
  const typed = (text) => {
    setText(text);
    setWrong(undefined);
  };

  const save = async (rev = read_.rev) => {
    let value;
    try {
      value = parse(text);
      if (!isObject(value)) throw new Error('A document is an object: { … }');
    } catch (error) {
      setWrong(error);
      return;
    }
    setBusy(true);
    setError(undefined);
    try {
      await ensureSession();
      const own = { ...value, _id: id ?? (name || value._id) };
      if (rev) own._rev = rev;
      if (read_.attachments) own._attachments = read_.attachments;
      const answer =
        own._id === undefined
          ? await ask('POST', `/${segment(database)}`, { text: stringify(own) })
          : await ask('PUT', documentPath(database, own._id), { text: stringify(own) });
      // What was typed during the save remains a draft, also if the page was left.
      const later = drafts.get(key);
      if (!isNew && later && later.text !== text) drafts.set(key, { text: later.text, rev: answer.rev, base: text });
      else drafts.delete(key);
      if (isNew) {
        go(databaseAddress(database, 'doc', answer.id), true);
        return;
      }
      setConflict(undefined);
      setRead({ ...read_, rev: answer.rev, text });
      say(`Saved as ${revision(answer.rev)}.`);
    } catch (error) {
      if (error.status === 409 && !isNew) {
        const { document } = await read(database, id).catch(() => ({ document: undefined }));
        setConflict({ theirs: document, mine: value });
      } else {
        setError(error);
      }
    }
    setBusy(false);
  };
  const saver = useRef();
  saver.current = save;
  useEffect(() => {
    const onKeyDown = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 's') {
        event.preventDefault();
        saver.current();
      }
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  }, []);

  const takeTheirs = () => {
    const next = base(conflict.theirs);
    setRead(next);
    setText(next.text);
    setConflict(undefined);
  };
  const remove = async () => {
    await ensureSession();
    await ask('DELETE', withQuery(documentPath(database, id), { rev: read_.rev }));
    drafts.delete(key);
    if (visited().item === id) go(databaseAddress(database));
  };
  const files = Object.keys(read_?.attachments ?? {}).length;
  const facts = read_?.rev
    ? [
        ['Revision', revision(read_.rev), read_.rev],
        ['Size', bytes(new Blob([read_.text]).size)],
        ['Conflicts', count(read_.conflicts.length)],
      ]
    : [];
  return html`<${Head} title=${isNew ? 'New document' : id} path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]} facts=${facts}>
      ${
        !isNew &&
        html`<${Choice} label="Parts of the document" value=${tab}
          onChange=${(tab) => setParameters({ tab: tab === 'contents' ? '' : tab })}
        options=${[
          ['contents', 'Contents'],
          ['stemma', 'Stemma'],
          ['files', files ? `Files (${files})` : 'Files'],
        ]} />`
      }
      ${
        tab === 'contents' &&
        read_ &&
        html`
        ${!isNew && html`<button class="danger" onClick=${() => setDialog('delete')}>Delete</button>`}
        <button class="primary" disabled=${busy || (!changed && !isNew)} onClick=${() => save()}>Save</button>`
      }
    <//>
    ${tab === 'stemma' && html`<${Stemma} database=${database} id=${id} onWritten=${load} say=${say} />`}
    ${
      tab === 'files' &&
      html`<${Attachments} database=${database} id=${id} document=${read_} say=${say}
      onChanged=${(rev, attachments) => setRead({ ...read_, rev, attachments })} error=${error} reload=${load} />`
    }
    ${
      tab === 'contents' &&
      html`
      ${
        isNew &&
        html`<div class="row"><${Field} label="Id" hint="Empty: the server makes one"><input value=${name}
          autocomplete="off" spellcheck="false"
        onInput=${(event) => setName(event.target.value)} /><//></div>`
      }
      <${ErrorNote} error=${error}>${
        error?.body?.reason === 'deleted' &&
        html`
        <button onClick=${() => setParameters({ tab: 'stemma' })}><${Icon}
          name="stemma" />Look at its revisions</button>`
      }<//>
      ${!read_ && !error && html`<${Loading} />`}
      ${wrong && html`<${Note} kind="bad">${wrong.message}<//>`}
      ${
        read_?.conflicts.length > 0 &&
        !conflict &&
        html`<${Note} kind="warn">This document has ${count(read_.conflicts.length + 1)} conflicting revisions.
        <button onClick=${() => setParameters({ tab: 'stemma' })}><${Icon} name="stemma" />Compare and resolve</button>
          <//>`
      }
      ${conflict && html`<${ConflictNote} conflict=${conflict} rev=${read_.rev} takeTheirs=${takeTheirs}
        overwrite=${save} busy=${busy} />`}
      ${read_ && large && html`<${LargeDocument} document=${large} edit=${() => setLarge(undefined)} />`}
      ${
        read_ &&
        !large &&
        html`<${Editor} label="Contents of the document" value=${text} onChange=${typed} onRun=${() => save()}
          error=${wrong} fill />
        <div class="pager"><span>${changed ? 'Not saved' : isNew ? '' : 'Saved'}</span>
          <button onClick=${() => {
            try {
              typed(stringify(parse(text), 2));
            } catch (error) {
              setWrong(error);
            }
          }}>Format</button>
          ${changed && !isNew && html`<button onClick=${() => typed(read_.text)}>Discard changes</button>`}
        </div>`
      }`
    }
    ${
      dialog === 'delete' &&
      html`<${Confirm} title="Delete document" action="Delete" onClose=${() => setDialog()} submit=${remove}>
      <p>The document <b>${id}
        </b> is deleted by a new revision. Its stemma still shows the earlier ones, as long as they are kept.</p><//>`
    }
    ${toast}`;
}

// Another user saved the document first: what differs, and both ways out.
function ConflictNote({ conflict, rev, takeTheirs, overwrite, busy }) {
  const { theirs, mine } = conflict;
  return html`<section class="conflict-box" role="alert">
    <h2>The document was changed meanwhile</h2>
    <p>You edited revision ${revision(rev)}.${' '}
      ${theirs ? `The current one is ${revision(theirs._rev)}.` : 'It is deleted now.'} Nothing was saved;
      your text is below.</p>
    ${theirs && html`<${Differences} left=${contents(theirs)} right=${mine} names=${['now saved', 'yours']} />`}
    <div class="actions">
      ${theirs && html`<button onClick=${takeTheirs}>Take what is saved, discard mine</button>`}
      <button class="danger" disabled=${busy} onClick=${() => overwrite(theirs?._rev)}>Save mine over it</button>
    </div>
  </section>`;
}

// A large document, field by field, since an editor of megabytes would be slow.
function LargeDocument({ document, edit }) {
  const rows = Object.entries(contents(document)).map(([name, value]) => {
    const text = typeof value === 'string' ? value : stringify(value);
    return { name, size: text.length, start: text.slice(0, 200) };
  });
  const total = rows.reduce((sum, { size }) => sum + size, 0);
  return html`<${Note}>This document is large (${bytes(total)}), so only the beginnings of its fields are shown. <button
    onClick=${edit}>Edit as text</button><//>
    <div class="table-box fit"><table aria-label="Fields"><thead><tr><th scope="col">Field</th><th scope="col"
      class="right">Size</th><th scope="col">Beginning</th></tr></thead>
      <tbody>${rows.slice(0, 200).map(({ name, size, start }) => html`<tr><td class="mono">${name}</td><td
        class="right">${bytes(size)}</td><td class="mono">${start}</td></tr>`)}</tbody>
    </table></div>`;
}
