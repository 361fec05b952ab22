{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The labels of every object. */}}
{{- define "gpupilot.labels" -}}
app.kubernetes.io/name: gpupilot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What selects the controller's pods. It never changes: a Deployment's selector is immutable. */}}
{{- define "gpupilot.selector" -}}
app.kubernetes.io/name: gpupilot
app.kubernetes.io/component: controller
{{- end }}

{{/* IMAGE of a dict with image and root. */}}
{{- define "gpupilot.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/*
The objects of files/, which are copies of the plain manifests in deploy/, in the release's namespace and
with the chart's labels. A dict with root and files, a glob; skip is a list of KIND/NAME.
*/}}
{{- define "gpupilot.manifests" -}}
{{- $root := .root -}}
{{- $skip := .skip | default list -}}
{{- $labels := include "gpupilot.labels" $root | fromYaml -}}
{{- range $path, $content := $root.Files.Glob .files }}
{{- range (toString $content | replace "gpupilot-system" $root.Release.Namespace | splitList "\n---\n") }}
{{- $object := fromYaml . }}
{{- if and $object.kind (not (has (printf "%s/%s" $object.kind $object.metadata.name) $skip)) }}
{{- if and (eq $object.kind "ServiceAccount") (eq $object.metadata.name "gpupilot-controller") $root.Values.serviceAccount.annotations }}
{{- $_ := set $object.metadata "annotations" $root.Values.serviceAccount.annotations }}
{{- end }}
{{- if eq $object.metadata.name "gpupilot-controller-daemonsets" }}
{{- if eq $object.kind "ValidatingAdmissionPolicy" }}
{{- include "gpupilot.agentLimits" (dict "root" $root "policy" $object) }}
{{- end }}
{{- end }}
{{- $_ := set $object.metadata "labels" (merge (dict) $labels ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Extends what the policy of a dict with root and policy lets the controller run as an agent: the images and host paths of
the values, and privileged agents if a value asks for them.
*/}}
{{- define "gpupilot.agentLimits" -}}
{{- $values := .root.Values -}}
{{- $spec := $values.gpuExporter.spec -}}
{{- $repository := $values.gpuExporter.image.repository -}}
{{- $images := concat $values.admissionPolicies.agentImages (list (printf "%s:" $repository) (printf "%s@" $repository)) -}}
{{- with $spec.image }}{{ $images = append $images . }}{{ end -}}
{{- $paths := $values.admissionPolicies.agentHostPaths -}}
{{- with $spec.driver }}{{ $paths = append $paths .root }}{{ end -}}
{{- range .policy.spec.variables -}}
{{- if eq .name "images" }}{{ $_ := set . "expression" (printf "%s + %s" .expression (toJson $images)) }}{{ end -}}
{{- if and (eq .name "hostPaths") $paths }}{{ $_ := set . "expression" (printf "%s + %s" .expression (toJson $paths)) }}{{ end -}}
{{- if and (eq .name "privileged") $spec.privileged }}{{ $_ := set . "expression" "true" }}{{ end -}}
{{- end -}}
{{- end }}
