package main

const hookUsage = `Usage: hostlock hook job-started | job-completed [--pid PID]
       hostlock hook install --runner-dir DIR... [flags]
       hostlock hook uninstall --runner-dir DIR... [--restart-idle]

The job hooks of a self-hosted GitHub Actions runner. job-started takes the host
before the first step of a job and job-completed gives it back when nothing of the
job is left. Between them every step is inside the job's hold. Should the job's
process die, the hold ends with it.

  --pid PID          hold the host for this process, not for the Runner.Worker
                     that the hook was started by

What a job gets is decided by /etc/hostlock.conf, which no job can reach:

  job repository=acme/db event=push runner=bench-* mode=exclusive wait=20m gate-cpu=0.5
  job repository=acme/docs mode=none
  default mode=shared wait=1h

The first job line whose globs all match decides, else the default line, else
mode=exclusive wait=1h. To match on: repository, workflow (OWNER/REPO/PATH@REF), job,
event, ref, runner; * is any text without a slash, ** any text, ? one character. To
give: mode (exclusive, shared, none), wait, gate, gate-cpu, gate-timeout,
on-gate-timeout (fail, proceed), strict-reap (true, false), max-foreign-cores (above
which the job's summary says suspect). The job's id is chosen by whoever writes the
workflow: name the repository beside it.
Without such lines HOSTLOCK_HOOK_MODE, _TIMEOUT, _GATE, _GATE_CPU, _GATE_TIMEOUT,
_ON_GATE_TIMEOUT, _STRICT_REAP and _MAX_FOREIGN_CORES of the runner's .env decide.

A cancel does not reach a hook that waits. Give builds a shared hold here, which is
short to wait for, and take the host alone in the step that measures.

install and uninstall change the .env of runners, which they read when they start:

  --runner-dir DIR   a runner's directory, or a glob; more may follow
  --restart-idle     restart the services of runners that run no job
  --copy-to PATH     first put this program there, by rename, for the hooks to start
  --host             as root: lay out /etc/hostlock.conf and /run/hostlock
  --group NAME       with --host: only this group can take the lock
`

const actionUsage = `Usage: hostlock action main | post

What the action's shims start: inputs come as INPUT_*, outputs and the summary go to
the files that the runner names. See action.yml.
`

const doctorUsage = `Usage: hostlock doctor [flags]

Looks at what a lock of this host rests on: configuration and policy, the lock
directory, what the lock covers, /proc, the kernel, and the runners of this host with
their hooks. Takes and creates nothing. Each line is ok, a warning or a failure, with what
to do about it. Exits 0 if there is no failure, else 7.

  --runner-dir DIR  look at this runner too, though its listener does not run
  --lock-dir DIR    as for the other commands
  --json            one JSON object
`
