// Package hook is the CI side of hostlock: the runner's job hooks, the action,
// their policy, outputs and summaries.
package hook
