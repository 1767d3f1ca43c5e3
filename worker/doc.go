// Package worker limits asynq tasks.
package worker
