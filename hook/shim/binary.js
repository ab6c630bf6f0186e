// Where the program comes from. The first place that has it counts: the input
// `binary`, PATH, the runner's tool cache, the release of this action's ref, and,
// only if asked, the source: a compile disturbs whoever measures on the host.
'use strict';
const { createHash, randomUUID } = require('node:crypto');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { env } = process;

const arch = { x64: 'amd64', arm64: 'arm64' }[process.arch];
// No slash: it becomes part of a path and of a URL.
const isVersion = /^v\d[\w.+-]*$/;
const patience = 5 * 60 * 1000; // of one download, in ms

function isProgram(file) {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}

const onPath = () =>
  (env.PATH || '').split(':').filter(Boolean).map((dir) => path.join(dir, 'hostlock')).find(isProgram);

const cacheDir = (version) => path.join(env.RUNNER_TOOL_CACHE, 'hostlock', version, process.arch);

// A directory of this job's own. Not a fixed name: in /tmp anybody could be there first.
const ownDir = () => fs.mkdtempSync(path.join(env.RUNNER_TEMP || os.tmpdir(), 'hostlock-'));

async function get(url) {
  const { protocol, hostname } = new URL(url);
  // The checksums come from the same place, so they are worth what the way to it is worth.
  if (protocol !== 'https:' && !['127.0.0.1', '[::1]', 'localhost'].includes(hostname))
    throw new Error(`${url} is not fetched, for it is not https`);
  try {
    const answer = await fetch(url, { signal: AbortSignal.timeout(patience) });
    if (answer.ok) return Buffer.from(await answer.arrayBuffer());
    throw new Error(`status ${answer.status}`);
  } catch (err) {
    throw new Error(`${url} cannot be fetched (${err.cause?.code || err.cause?.message || err.message})`);
  }
}

// A release has the file SHA256SUMS, as sha256sum writes it, with one line for
// each platform. That of v1 names the files of the newest v1.x.y.
async function fetchRelease(version) {
  const server = env.GITHUB_SERVER_URL || 'https://github.com';
  const repository = env.GITHUB_ACTION_REPOSITORY || 'org/hostlock-action';
  const origin = env.HOSTLOCK_RELEASES || `${server}/${repository}/releases/download`;
  const sums = (await get(`${origin}/${version}/SHA256SUMS`)).toString();
  const line = new RegExp(`^([0-9a-f]{64}) [ *](hostlock_(v\\d[\\w.+-]*)_linux_${arch})$`, 'm').exec(sums);
  if (!line) throw new Error(`the release ${version} has no program for ${process.platform} ${process.arch}`);
  const [, sum, name, exact] = line;
  if (exact !== version && !exact.startsWith(`${version}.`))
    throw new Error(`the checksums of ${version} are those of ${exact}`);
  if (env.RUNNER_TOOL_CACHE && isProgram(path.join(cacheDir(exact), 'hostlock'))) return path.join(cacheDir(exact), 'hostlock');

  const program = await get(`${origin}/${exact}/${name}`);
  const got = createHash('sha256').update(program).digest('hex');
  if (got !== sum) throw Object.assign(new Error(`${name} has the checksum ${got} and not ${sum}: it is not used`), { final: true });
  const file = path.join(writableCache(exact) || ownDir(), 'hostlock');
  const temporary = `${file}.${randomUUID()}`;
  try {
    fs.writeFileSync(temporary, program, { flag: 'wx', flush: true });
    fs.chmodSync(temporary, 0o755);
    fs.renameSync(temporary, file); // another job may do the same
  } finally {
    fs.rmSync(temporary, { force: true });
  }
  console.log(`hostlock: fetched ${exact}, checksum ${sum}`);
  return file;
}

function writableCache(version) {
  try {
    fs.mkdirSync(cacheDir(version), { recursive: true });
    fs.accessSync(cacheDir(version), fs.constants.W_OK);
    return cacheDir(version);
  } catch {
    return undefined; // none, or not ours: it is fetched again next time
  }
}

async function build(start) {
  const file = path.join(ownDir(), 'hostlock');
  console.log('hostlock: compiling, which disturbs whoever measures on this host');
  const cwd = path.resolve(__dirname, '../..');
  const code = await start('go', ['build', '-trimpath', '-buildvcs=false', '-o', file, './cmd/hostlock'],
    { cwd, env: { ...env, CGO_ENABLED: '0' } });
  if (code !== 0) throw new Error(`hostlock cannot be built in ${cwd} (go build: exit ${code})`);
  return file;
}

// Finds the program: its file, and whether that was fetched or built just now.
// start runs another program and promises its exit status.
async function findBinary(phase, start) {
  if (env.INPUT_BINARY) return { file: env.INPUT_BINARY };
  if (phase === 'post' && env.STATE_binary) return { file: env.STATE_binary };
  const found = onPath();
  if (found) return { file: found };
  if (phase === 'post') throw new Error('there is no hostlock on PATH');

  const ref = env.GITHUB_ACTION_REF || '';
  const version = env.INPUT_VERSION || (isVersion.test(ref) ? ref : '');
  let why = `there is no hostlock on PATH, and ${ref || 'a local checkout of this action'} names no release: ` +
    'name one with the input `version` (v1.2.3), or have it compiled with `build: true`, which disturbs whoever measures here';
  if (version && !isVersion.test(version)) throw new Error(`the input version is a release's tag like v1.2.3, not ${version}`);
  if (version) {
    const cached = env.RUNNER_TOOL_CACHE && path.join(cacheDir(version), 'hostlock');
    if (cached && isProgram(cached)) return { file: cached, fetched: true };
    try {
      return { file: await fetchRelease(version), fetched: true };
    } catch (err) {
      if (err.final) throw err;
      why = `there is no hostlock on PATH, and ${err.message}`;
    }
  }
  if (env.INPUT_BUILD === 'true') return { file: await build(start), fetched: true };
  throw new Error(why);
}

module.exports = { findBinary };
