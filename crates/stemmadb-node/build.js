// Builds the native library with cargo, and puts it beside this file under the name that `lib/native.js` looks for.
// `--profile dev` builds it without optimization; `--if-missing` does nothing if it is there. The variable
// `STEMMA_NODE_SOURCE` names the crate if this is a copy of its package.
'use strict';

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { fileName } = require('./lib/platform.js');

const target = path.join(__dirname, fileName());
if (!(process.argv.includes('--if-missing') && fs.existsSync(target))) {
  const profile = process.argv.includes('--profile') ? process.argv[process.argv.indexOf('--profile') + 1] : 'release';
  const cwd = process.env.STEMMA_NODE_SOURCE ?? __dirname;
  const cargo = (...args) => execFileSync('cargo', args, { cwd, stdio: ['ignore', 'pipe', 'inherit'] });
  cargo('build', '--locked', '--profile', profile);
  const metadata = JSON.parse(cargo('metadata', '--locked', '--no-deps', '--format-version', '1'));
  const directory = path.join(metadata.target_directory, profile === 'dev' ? 'debug' : profile);
  const names = { linux: 'libstemmadb_node.so', darwin: 'libstemmadb_node.dylib', win32: 'stemmadb_node.dll' };
  fs.copyFileSync(path.join(directory, names[process.platform] ?? names.linux), target);
}
