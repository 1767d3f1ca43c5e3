// Package trace shows what limiters do in OpenTelemetry: a span for every decision, and metrics.
//
//	limiter, err := headgate.New(store, "openai:rpm", algorithm,
//		headgate.WithName("openai"),
//		trace.Instrument())
//
// A Wait is a span "wait openai" under the caller's own, with the sleep as its child, so that the time that Redis took,
// the sleep and what it lasted too long can be read off. With WithScriptCalls each run of the script in Redis is one too.
// A refusal is no error, nor is a caller that left; a store that failed is.
//
// The metrics are told apart by the limiter's name and a few words, never by its key: 100,000 keys are as many series as
// one. A key is on a span only where WithKey says so. So a limiter's name must not hold what belongs to a user.
//
// docs/observability.md of the repository lists every span, attribute and metric, and answers with them the questions
// that come up in operation; a dashboard for Grafana lies beside it.
package trace
