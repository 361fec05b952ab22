// SPDX-License-Identifier: Apache-2.0

// Package arena repeats the public part of NVIDIA's Planner Gym (October 2026): its traces,
// its workers, its metric and its ranks, with GPUPilot's policies beside the published ones
// and other autoscalers for LLM servers. Then it extends the match: loads of an hour, longer
// starts, the age of scraped metrics, and floors of the share of requests that are served
// within their limits.
package arena
