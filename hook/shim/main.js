// The runner can start only JavaScript as an action with a post step; all that is
// decided about the lock, is decided by `hostlock action main` and `hostlock action post`.
'use strict';
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const { signals } = require('node:os').constants;
const { findBinary } = require('./binary.js');

const phase = require.main === module ? 'main' : 'post';

// A workflow command ends at the line: what could end it early is escaped.
const say = (level, text) =>
  console.log(`::${level}::${text.replace(/%/g, '%25').replace(/\r/g, '%0D').replace(/\n/g, '%0A')}`);

let child;
// The runner signals this process alone, and kills it 10 s later. Listening
// begins before the child is there: a signal in between would kill this process
// and orphan that one. Where there is no child yet, a download is all that ends.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'])
  process.on(signal, () => (child ? child.kill(signal) : process.exit(128 + signals[signal])));

// No shell in between: one would drop INPUT_ names with a dash in them. And
// stdio is inherited, not piped, so that a process the command leaves behind
// cannot keep this one alive.
const start = (file, args, options) =>
  new Promise((resolve, reject) => {
    child = spawn(file, args, { stdio: 'inherit', ...options });
    child.on('error', (err) => reject(new Error(`cannot run ${file} (${err.code})`)));
    child.on('exit', (code, signal) => {
      child = undefined;
      resolve(signal ? 128 + signals[signal] : code);
    });
  });

async function action() {
  const binary = await findBinary(phase, start);
  // Only a path that we made: the input is there again in post.
  if (phase === 'main' && binary.fetched && process.env.GITHUB_STATE)
    fs.appendFileSync(process.env.GITHUB_STATE, `binary=${binary.file}\n`);
  return start(binary.file, ['action', phase]);
}

action().then(
  (code) => process.exit(code),
  (err) => {
    // Without a binary nothing was taken, so post has nothing to give back, and
    // main has already said what is wrong.
    if (phase === 'post') return say('debug', `hostlock: ${err.message}`);
    say('error', `hostlock: ${err.message}. Install hostlock on this host where the runner's PATH finds it, ` +
      'or name the file with the input `binary`.');
    process.exitCode = 127;
  },
);
