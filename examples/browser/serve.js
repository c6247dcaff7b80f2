// Serves the page's own files, to this machine only: node serve.js [port]
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const files = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/app.js': ['app.js', 'text/javascript; charset=utf-8'],
  '/style.css': ['style.css', 'text/css; charset=utf-8'],
  '/pouchdb.min.js': ['node_modules/pouchdb/dist/pouchdb.min.js', 'text/javascript; charset=utf-8'],
};

const server = http.createServer((request, response) => {
  const [file, type] = files[request.url] || [];
  if (!file) return response.writeHead(404).end();
  const content = fs.createReadStream(path.join(__dirname, file));
  content.on('open', () => content.pipe(response.writeHead(200, { 'Content-Type': type })));
  content.on('error', () => response.writeHead(404).end('Not there: was `npm ci --ignore-scripts` run?'));
});
server.listen(Number(process.argv[2] ?? 8000), '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
