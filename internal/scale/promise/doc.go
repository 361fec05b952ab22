// SPDX-License-Identifier: Apache-2.0

// Package promise keeps an objective, such as 99 % of the requests within their
// latency limits, with few replicas. It is pure: it reads no clock and does no I/O.
//
//   - [Work] learns how much of a replica's time a token takes. The load is then known
//     in busy replicas, whether prompts are long or answers are.
//   - [Curve] learns which share of the requests misses a limit when replicas are that
//     busy.
//   - [Replay.Choose] replays the recorded load with 2,560 plans, each a
//     headroom, a window and a reserve. It returns the cheapest one that keeps the
//     objective.
//   - [State] is what is learned about one workload, and asks for its replicas.
//
// A stricter objective never chooses a cheaper plan from the same record.
package promise
