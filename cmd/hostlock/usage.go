package main

// The usage texts are written by hand, as a person will read them.

const usage = `Usage: hostlock COMMAND [flags]

hostlock keeps measurements apart from load on a machine that several CI
runners, people and scripts share: one advisory lock for the whole host, first
come first served, and a record of what the host was doing.

Take the host:
  run          run a command while holding the host
  acquire      take the host for the process that goes on afterwards
  release      give back what acquire took

Look at it:
  status       who holds the host, who waits, what acquire would do
  wait         wait until nobody is in the way; takes nothing
  assert-held  am I inside a host lock of my own?
  provenance   where a measured row comes from
  log          the holds that have ended

Clean up:
  reap         acknowledge a STALE lock, whose holder died

  doctor       is this host set up so that its lock can be believed?

In CI:
  hook         the job hooks of a runner, and their installation
  action       what the action's shims start

  version      the version of this hostlock

hostlock COMMAND --help tells the flags of one command.

The lock is FREE, HELD, STALE (the holder died and nobody has acknowledged
that) or EXPIRED (the holder lives, past the limit that it set itself).

Environment:
  HOSTLOCK_DIR         the lock directory; --lock-dir goes before it
  HOSTLOCK_CONF        the configuration instead of /etc/hostlock.conf, whose
                       lock_dir = PATH names the directory for the whole host
  HOSTLOCK_PRIVATE_OK  1: do not remind me that a directory of my own
                       coordinates with nobody else
Without any of these the directory is /tmp/hostlock.

Exit codes:
  0 ok     1 usage          2 busy                     3 timed out waiting
  4 reap refused            5 gate not met             6 held but not believable,
  7 lock directory unusable 8 unsupported platform       or taken over
  9 nested in our own hold  128+N ended by signal N while waiting
`

// usages are the texts of the commands.
var usages = map[string]string{
	"hook":   hookUsage,
	"action": actionUsage,
	"doctor": doctorUsage,

	"run": `Usage: hostlock run [flags] -- COMMAND...

Runs a command while holding the host, and releases the host when the command
and what it started have been waited for. Waits for its turn. The command's
stdin, stdout and exit status are its own; hostlock speaks on stderr.

Inside a hold of its own (an outer run, an acquire of the same job) it joins
that hold instead of waiting for itself.

  --reason TEXT            what the host is for, in words for whoever has to
                           wait; required outside a CI job, which says it itself
  --owner NAME             who takes it: letters, digits and _ . - / : #
                           (default: the CI job, else $USER, undeclared)
  --shared                 beside other shared holds, for builds (default:
                           alone, for measurements)
  --timeout D              how long to wait at most (3600)
  --no-wait                do not wait: exit 2 if the host is not to be had
  --gate N                 then wait until at most N tasks are runnable (at
                           least 1: the one that counts is runnable itself)
  --gate-cpu CORES         or until at most CORES are busy, over a second
  --gate-timeout D         how long to wait for the gate (900)
  --on-gate-timeout fail|proceed
                           release and exit 5 (fail), or go on and record that
  --strict-reap            refuse a host whose last holder did not release it
                           (exit 4), and leave it as it is
  --survivors wait|ignore  wait for what a dead holder left running (wait)
  --kill-after D           after the first signal, end the command by force when
                           D is over (in a CI job 5, elsewhere never)
  --linger D               how long to wait for what the command leaves running
                           before it is named and recorded (2)
  --lock-dir PATH          a lock directory of your own

Whether to believe the run: each bound makes it suspect, and only a bound can
make it clean. Counters are read when the command starts and when it ends.

  --max-foreign-cores C    others may use C cores, on average over the run
  --expect-cores N         the command should keep N cores busy
  --min-efficiency E       and is believed from this share of them on (0 to 1)
  --result FILE            write verdict, measures and record to FILE as JSON; an
                           older FILE goes at once, and there is none if no
                           command was run

D is a number of seconds, or a duration like 15m.

HUP, INT, QUIT, TERM, USR1, USR2 and ALRM end the wait, or go to the command. It
finds those ignored that were when hostlock was started only if they are HUP or
INT, with which goes QUIT.

Environment: HOSTLOCK_OWNER, HOSTLOCK_REASON, HOSTLOCK_TIMEOUT, HOSTLOCK_GATE,
HOSTLOCK_GATE_CPU, HOSTLOCK_GATE_TIMEOUT and HOSTLOCK_ON_GATE_TIMEOUT stand in
for the flags of their names; HOSTLOCK_DIR, HOSTLOCK_CONF, HOSTLOCK_PRIVATE_OK:
see hostlock --help. HOSTLOCK_REFUSED=1 (a job that was refused the host): exit 2.
The command gets HOSTLOCK_HELD=1, HOSTLOCK_HOLD_ID, HOSTLOCK_ANCHOR_PID,
HOSTLOCK_DIR, and HOSTLOCK_OWNER where an owner was declared.

Exit code: the command's own (128+N for signal N, 126 cannot be run, 127 not
found), and where it never ran:
  1 usage   2 busy, with --no-wait   3 timed out   4 reap refused   5 gate not met
  7 lock directory unusable   8 unsupported platform   9 nested in our own hold
  6 the command succeeded, and the host was taken over before it had ended, or a
    bound was given and the run is suspect, or FILE could not be written
`,

	"acquire": `Usage: hostlock acquire [flags]

Takes the host for another process, its anchor, and ends. The host stays held
until that process ends or hostlock release is called. Does not wait unless told
to. Prints outcome=… and, when the host is held, hold_id=… on stdout.

outcome: acquired, acquired_after_reap (KIND), joined, busy, timed_out,
reap_refused (KIND), gate_failed, unusable. KIND: stale_pid, ttl_expired,
unverifiable.

  --pid PID                the process to hold the host for (default: the CI
                           job's, Runner.Worker or act; else the nearest above
                           this one that is not sudo, env, timeout or the like,
                           so usually your shell). Never init; another user's
                           only if named here
  --ttl D                  after this the hold counts as lapsed, and may be
                           taken over though its process lives; 0 is none (3600;
                           in a CI job 0, where one process runs several 6h)
  --owner NAME             who takes it: letters, digits and _ . - / : #
                           (default: the CI job, else $USER, undeclared)
  --reason TEXT            what the host is for, in words for whoever has to wait
                           (default: in a CI job its workflow and name)
  --shared                 beside other shared holds, for builds (default:
                           alone, for measurements)
  --wait                   wait for our turn (default: --no-wait)
  --timeout D              with --wait: how long at most (3600)
  --gate N                 then wait until at most N tasks are runnable (at
                           least 1: the one that counts is runnable itself)
  --gate-cpu CORES         or until at most CORES are busy, over a second
  --gate-timeout D         how long to wait for the gate (900)
  --on-gate-timeout fail|proceed
                           release and exit 5 (fail), or go on and record that
  --strict-reap            refuse a host whose last holder did not release it
                           (exit 4), and leave it as it is
  --survivors wait|ignore  wait for what a dead holder left running (wait)
  --nested join            inside our own hold: succeed with outcome=joined and
                           take nothing (default: exit 9)
  --lock-dir PATH          a lock directory of your own

D is a number of seconds, or a duration like 15m.

Environment: HOSTLOCK_OWNER, HOSTLOCK_REASON, HOSTLOCK_TIMEOUT, HOSTLOCK_GATE,
HOSTLOCK_GATE_CPU, HOSTLOCK_GATE_TIMEOUT and HOSTLOCK_ON_GATE_TIMEOUT stand in
for the flags of their names; HOSTLOCK_HOLD_ID names the hold that we are inside
of; HOSTLOCK_DIR, HOSTLOCK_CONF, HOSTLOCK_PRIVATE_OK: see hostlock --help.
HOSTLOCK_REFUSED=1 (a job that was refused the host): exit 2.

Exit codes: 0 held, or joined
  1 usage   2 busy   3 timed out   4 reap refused   5 gate not met
  6 taken over before it was handed to its process   7 lock directory unusable
  8 unsupported platform   9 nested in our own hold
  128+N ended by signal N while it waited; then nothing is held
`,

	"release": `Usage: hostlock release [flags]

Gives back a hold that acquire took: the one that this is inside of.

  --hold-id ID     this one, by the id that acquire printed (default:
                   $HOSTLOCK_HOLD_ID, else the one of a process above this one)
  --force          also one that is not ours but our user's, a run's included;
                   for root anybody's. Kills nobody: what it measures goes on,
                   beside whoever comes next
  --lock-dir PATH  a lock directory of your own

Environment: HOSTLOCK_HOLD_ID; HOSTLOCK_DIR, HOSTLOCK_CONF, HOSTLOCK_PRIVATE_OK:
see hostlock --help.

Exit codes: 0 released
  1 usage   2 nothing to release, or not ours   6 it was taken over meanwhile
  7 lock directory unusable   8 unsupported platform   9 another user's own hold
`,

	"status": `Usage: hostlock status [flags]

Says who holds the host, since when and what for, who waits, and what acquire
would really do. Takes and creates nothing.

  --porcelain      key=value, one a line, always the same keys:
                   state mode owner anchor_pid anchor_uid hold_id seq reason
                   worktree cmd ttl age waiting evidence runnable lock_dir
                   lock_scope lock_dir_source lock_dir_problem
                   It speaks of our own hold, else of the one by which the
                   state is what it is. Times are seconds.
  --json           everything, about all who hold and wait, on one line
  --lock-dir PATH  a lock directory of your own

state: FREE HELD STALE EXPIRED. reason, worktree and cmd are free text of
whoever wrote them.

Environment: HOSTLOCK_DIR, HOSTLOCK_CONF: see hostlock --help.

Exit codes: 0 whatever the state
  1 usage   7 lock directory unusable: then there is no state, and it is not FREE
  8 unsupported platform
`,

	"wait": `Usage: hostlock wait [flags]

Waits until an acquire would be let in, and takes nothing: somebody else may
come first. To get the host, use run, or acquire --wait.

  --timeout D      how long at most (3600); seconds, or a duration like 15m
  --lock-dir PATH  a lock directory of your own

Environment: HOSTLOCK_DIR, HOSTLOCK_CONF, HOSTLOCK_PRIVATE_OK: see hostlock
--help.

Exit codes: 0 nobody is in the way
  1 usage   3 timed out   7 lock directory unusable   8 unsupported platform
  9 inside our own hold, which would be waiting for ourselves
  128+N ended by signal N
`,

	"assert-held": `Usage: hostlock assert-held [flags]

Answers a harness that asks whether it is inside a host lock of its own. Says
nothing when it is.

  --owner NAME     and whether that was declared to be NAME's
  --lock-dir PATH  a lock directory of your own

Environment: HOSTLOCK_HOLD_ID names the hold that we are inside of (else it is
the one of a process above this one); HOSTLOCK_DIR, HOSTLOCK_CONF,
HOSTLOCK_PRIVATE_OK: see hostlock --help.

Exit codes: 0 yes
  1 usage   2 no: inside nobody's, or somebody else's, who is named
  6 inside our own, which is past its ttl or was taken over
  7 lock directory unusable   8 unsupported platform
`,

	"reap": `Usage: hostlock reap [flags]

Acknowledges a STALE lock: takes away the tickets of holders that died without
releasing. Not needed before acquire, which does the same, but it lets an
acquire --strict-reap in. Kills nobody, and leaves every living holder as it is.

  --survivors wait|ignore  refuse while processes of the dead holder are busy
                           (wait), or acknowledge the lock beside them
  --lock-dir PATH          a lock directory of your own

Environment: HOSTLOCK_DIR, HOSTLOCK_CONF, HOSTLOCK_PRIVATE_OK: see hostlock
--help.

Exit codes: 0 done, or nothing was stale
  1 usage   2 the dead holder left busy processes, which are named
  7 lock directory unusable   8 unsupported platform
`,

	"provenance": `Usage: hostlock provenance [flags]

Says where a measured row comes from: whose the host is, who says so, what had
to be taken over, how busy it is. What nobody recorded is unknown, never none.

  --oneline            one line for a row of results: key=value, separated by
                       single spaces, nothing that anybody typed freely in it,
                       other characters as %XX
  --json               the same as an object, with the free text
  --expect-runnable N  the number of runnable tasks above which the host counts
                       as contended (default: none, and contended=unknown)
  --lock-dir PATH      a lock directory of your own

Keys: hostlock_state declared held_by held_uid held_pid held_secs takeover gate
runnable_at_acquire runnable contended mode hold_id seq wait_secs survivors
lock_dir lock_scope lock_dir_source sampled_at, and, not in the one-line form,
reason held_worktree held_cmd.
declared is yes where a live holder stands behind the state, no where none does
(FREE, STALE), unknown where its record cannot be read.
held_by is what somebody typed, unknown where nobody did; held_uid is what the
kernel says. lock_dir_source is flag, env, config or default; inside a run it is
env, because run exports HOSTLOCK_DIR to its command.

Environment: HOSTLOCK_HOLD_ID; HOSTLOCK_DIR, HOSTLOCK_CONF: see hostlock --help.

Exit codes: 0 ok
  1 usage   7 lock directory unusable   8 unsupported platform
`,

	"log": `Usage: hostlock log [flags]

Shows the holds that have ended, the newest last: how long they took and waited,
whether what was measured can be believed, and whose they were.

  -n, --number N   how many at most (20)
  --json           one object a line, as run --result writes it: what is not
                   known is null. hold.id joins it to rows of provenance
  --lock-dir PATH  a lock directory of your own

Environment: HOSTLOCK_DIR, HOSTLOCK_CONF: see hostlock --help.

Exit codes: 0 ok
  1 usage   7 lock directory unusable   8 unsupported platform
`,

	"version": `Usage: hostlock version

Prints the version of this hostlock.
`,
}
