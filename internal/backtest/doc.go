// SPDX-License-Identifier: Apache-2.0

// Package backtest replays recorded load against autoscaling policies on a
// simulated inference service, and says what each of them would have cost and
// whom it would have kept waiting.
//
// The service is simulated request by request. A replica batches continuously:
// all of its sequences advance at one rate, which changes only when a request
// joins or leaves, so that between those moments the replica's state is a
// straight line and nothing needs to be stepped (see replica). What is left out
// is the grain of single iterations, at most half of one per request;
// TestReplicaAgainstIterations holds the difference to a simulation that takes
// every iteration. Pods start, become ready and are deleted on whole seconds.
//
// The peers (HorizontalPodAutoscaler, KEDA, Knative) are modelled from their
// sources, with the delays of the chain that feeds them; ours is scale.Decide
// itself, fed as the controller feeds it.
package backtest
