// The attachments of a document: list, upload, preview, removal.

import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { ask, documentPath, ensureSession, respond, segment, withQuery } from '../lib/api.js';
import { bytes } from '../lib/format.js';
import { Confirm, Dialog, Empty, ErrorNote, Icon, Loading } from '../ui/basics.js';

// A text with more bytes is cut in the preview.
const PREVIEW_BYTES_MAX = 100_000;

export function Attachments({ database, id, document, onChanged, say, error, reload }) {
  const [failure, setFailure] = useState();
  const [busy, setBusy] = useState();
  const [shown, setShown] = useState();
  const [removing, setRemoving] = useState();
  const input = useRef();
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!document) return html`<${Loading} />`;
  const path = (name) => `${documentPath(database, id)}/${segment(name)}`;
  const attachments = document.attachments ?? {};

  const refresh = async () => {
    const { _rev, _attachments } = await ask('GET', documentPath(database, id));
    onChanged(_rev, _attachments);
  };
  const upload = async (files) => {
    setFailure(undefined);
    try {
      await ensureSession();
      let { rev } = document;
      for (const file of files) {
        setBusy(file.name);
        const headers = { 'Content-Type': file.type || 'application/octet-stream' };
        ({ rev } = await ask('PUT', withQuery(path(file.name), { rev }), { content: file, headers }));
      }
      await refresh();
      say(files.length === 1 ? `${files[0].name} is stored.` : `${files.length} files are stored.`);
    } catch (error) {
      setFailure(error);
      if (error.status === 409) reload();
    }
    setBusy(undefined);
  };
  const remove = async () => {
    await ensureSession();
    await ask('DELETE', withQuery(path(removing), { rev: document.rev }));
    await refresh();
  };
  const drop = (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length > 0) upload([...event.dataTransfer.files]);
  };
  const names = Object.keys(attachments);
  return html`<section class="drop" onDragOver=${(event) => event.preventDefault()} onDrop=${drop}>
    <div class="row">
      <button class="primary" disabled=${!!busy} onClick=${() => input.current.click()}><${Icon}
        name="plus" />Add files</button>
      <input ref=${input} type="file" multiple hidden aria-label="Files"
        onChange=${(event) => upload([...event.target.files])} />
      <span class="soft">${busy ? `Storing ${busy} …` : 'or drop them here'}</span>
    </div>
    <${ErrorNote} error=${failure} />
    ${
      names.length === 0
        ? html`<${Empty}>This document has no files.<//>`
        : html`<div class="table-box fit"><table aria-label="Files">
      <thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col" class="right">Size</th><th
        scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${names.map(
        (name) => html`<tr key=${name}>
        <td><button class="link" onClick=${() => setShown(name)}>${name}</button></td>
        <td>${attachments[name].content_type}</td><td class="right">${bytes(attachments[name].length)}</td>
        <td class="right"><a href=${path(name)} download=${name}>Download</a> <button class="link"
          onClick=${() => setRemoving(name)}>Remove</button></td>
      </tr>`,
      )}</tbody></table></div>`
    }
    ${shown && html`<${Preview} name=${shown} path=${path(shown)} type=${attachments[shown]?.content_type ?? ''}
      close=${() => setShown()} />`}
    ${
      removing &&
      html`<${Confirm} title="Remove file" action="Remove" onClose=${() => setRemoving()} submit=${remove}>
      <p>The file <b>${removing}</b> is removed from the document.</p><//>`
    }
  </section>`;
}

// Images, sound and video are shown as such; text as text, whatever its type says. Nothing is rendered as a page.
function Preview({ name, path, type, close }) {
  const [text, setText] = useState();
  const [error, setError] = useState();
  const kind = type.split('/')[0];
  const isText = kind === 'text' || /json|xml|javascript|yaml|csv/.test(type);
  useEffect(() => {
    if (!isText || kind === 'image') return;
    respond('GET', path, { headers: { Accept: '*/*', Range: `bytes=0-${PREVIEW_BYTES_MAX - 1}` } })
      .then((response) => response.text())
      .then(setText, setError);
  }, []);
  let body = html`<p>This kind of file has no preview.</p>`;
  if (kind === 'image') body = html`<img src=${path} alt=${name} />`;
  else if (kind === 'audio') body = html`<audio src=${path} controls></audio>`;
  else if (kind === 'video') body = html`<video src=${path} controls></video>`;
  else if (isText)
    body = text === undefined ? html`<${Loading} />` : html`<pre class="code" tabindex="0">${text}</pre>`;
  return html`<${Dialog} title=${name} onClose=${close} wide>
    <div class="dialog-body preview"><${ErrorNote} error=${error} />${body}</div>
    <div class="dialog-foot"><a class="button" href=${path} download=${name}>Download</a></div>
  <//>`;
}
