// SPDX-License-Identifier: Apache-2.0

// Package gpuexporter reconciles GPUExporters. It applies the DaemonSet of the agents and
// its other objects according to each GPUExporter's spec. It labels GPU nodes without a
// label for GPUs, and reports the result in the status.
//
// The objects are computed by Render, a pure function, and written by server-side apply
// (docs/design/0011-gpuexporter.md). Only the leader runs a Keeper.
package gpuexporter

import (
	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// FieldManager is the manager of the fields that a Keeper applies.
const FieldManager = "gpupilot-exporter"

// The labels of the objects. The value of LabelExporter is the GPUExporter's name.
const (
	LabelName     = "app.kubernetes.io/name"
	LabelExporter = "gpupilot.dev/exporter"

	// AgentName is the value of LabelName by which the controller finds agents.
	AgentName = "gpupilot-agent"
	probeName = "gpupilot-probe"
)

// ServiceAccount is the account of agents that use the API server. deploy/rbac binds
// its role. All GPUExporters share it.
const ServiceAccount = "gpupilot-agent"

const (
	metricsPort     = 9400
	metricsPortName = "metrics"
	// collectorsKey and configKey are the keys of the ConfigMap, and the names of its files.
	collectorsKey = "collectors.csv"
	configKey     = "agent.yaml"
	configDir     = "/etc/gpupilot"
	webDir        = "/etc/gpupilot-web"
	driverDir     = "/driver-root"
)

// Settings are the controller's flags for all exporters.
type Settings struct {
	Namespace string // of the agents and all objects
	Image     string // of agents without an image of their own; empty: each needs one
	Tokens    bool   // agents require a token
}

// ObjectName returns the name of the objects of a GPUExporter.
func ObjectName(e *v1alpha1.GPUExporter) string { return AgentName + "-" + e.Name }

func probeObjectName(e *v1alpha1.GPUExporter) string { return probeName + "-" + e.Name }

// labelsOf returns the labels of an exporter's objects. It does not set
// app.kubernetes.io/instance, which Argo CD uses for tracking.
func labelsOf(e *v1alpha1.GPUExporter, name string) map[string]string {
	return map[string]string{
		LabelName: name, LabelExporter: e.Name,
		"app.kubernetes.io/part-of": "gpupilot", "app.kubernetes.io/managed-by": "gpupilot-controller",
	}
}

// selectorOf returns the part of labelsOf that never changes.
func selectorOf(e *v1alpha1.GPUExporter, name string) map[string]string {
	return map[string]string{LabelName: name, LabelExporter: e.Name}
}
