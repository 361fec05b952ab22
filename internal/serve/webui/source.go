// SPDX-License-Identifier: Apache-2.0

// Package webui serves the state and the decisions of the controller: a small live
// page, and the read-only JSON behind it, which the CLI uses too.
package webui

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Source is the source of the page's data. Its methods do not block on anything
// outside the process. They return values that are never changed.
type Source interface {
	// View returns the present state, without the fields that this package computes:
	// Fleet, Pools, Problems, Omitted and Refresh.
	View() view.View
	// History returns one workload's recent past, oldest point first, at most about
	// 600 points. ok is false for an unknown workload.
	History(namespace, name string) (h view.History, ok bool)
	// Workload returns one workload in detail, without its decisions. ok is false for an
	// unknown workload.
	Workload(namespace, name string) (d view.WorkloadDetail, ok bool)
	// Device returns one device in detail. ok is false if the node has none of this UUID.
	Device(node, uuid string) (d view.Device, ok bool)
	// GPUHours adds up the history of all workloads and namespaces from one time until another.
	GPUHours(from, to time.Time) []GPUHours
	// Minutes returns the one-minute aggregates of one workload. ok is false for an
	// unknown workload. The error says which limit of an answer the query exceeds.
	Minutes(namespace, name string, q *view.MinuteQuery) (m view.Minutes, ok bool, err error)
}
