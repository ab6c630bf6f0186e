// The runner can start only JavaScript as an action with a post step; all that is
// decided, is decided by `hostlock action main` and `hostlock action post`.
'use strict';
const { spawn } = require('node:child_process');
const { signals } = require('node:os').constants;

const phase = require.main === module ? 'main' : 'post';
const binary = process.env.INPUT_BINARY || 'hostlock';

// A workflow command ends at the line: what could end it early is escaped.
const say = (level, text) =>
  console.log(`::${level}::${text.replace(/%/g, '%25').replace(/\r/g, '%0D').replace(/\n/g, '%0A')}`);

let child;
// The runner signals this process alone, and kills it 10 s later. Listening
// begins before the child is there: a signal in between would kill this process
// and orphan that one. (Handlers run in the event loop, so the child is set.)
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));

// No shell in between: one would drop INPUT_ names with a dash in them. And
// stdio is inherited, not piped, so that a process the command leaves behind
// cannot keep this one alive.
child = spawn(binary, ['action', phase], { stdio: 'inherit' });

child.on('exit', (code, signal) => process.exit(signal ? 128 + signals[signal] : code));
child.on('error', (err) => {
  const text = `hostlock: cannot run ${binary} (${err.code}). Install hostlock on this host where the ` +
    "runner's PATH finds it, or name the file with the input `binary`.";
  // Without a binary nothing was taken, so post has nothing to give back, and
  // main has already said what is wrong.
  if (phase === 'post') return say('debug', text);
  say('error', text);
  process.exitCode = 127;
});
