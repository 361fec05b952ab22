{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/*
Gives the values of an older release, which helm upgrade --reuse-values passes, the defaults of what is new. Each template
starts with it. A key that is null is filled, too, except in what is passed to Kubernetes as it is.
*/}}
{{- define "gpupilot.defaults" -}}
{{- include "gpupilot.fill" (dict "values" .Values "defaults" (.Files.Get "files/values.yaml" | fromYaml)) -}}
{{- end }}

{{- define "gpupilot.fill" -}}
{{- $values := .values -}}
{{- range $key, $default := .defaults -}}
{{- $have := get $values $key -}}
{{- if has $key (list "resources" "podSecurityContext" "securityContext" "livenessProbe" "readinessProbe") -}}
{{- if not (hasKey $values $key) }}{{ $_ := set $values $key $default }}{{ end -}}
{{- else if kindIs "invalid" (index $values $key) -}}
{{- $_ := set $values $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $have) -}}
{{- include "gpupilot.fill" (dict "values" $have "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end }}

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

{{/* The labels of every object, and more, which have precedence: a dict with root and more. */}}
{{- define "gpupilot.labelsAnd" -}}
{{ toYaml (merge (dict) .more (include "gpupilot.labels" .root | fromYaml)) }}
{{- end }}

{{/* What selects the controller's pods. It never changes: a Deployment's selector is immutable. */}}
{{- define "gpupilot.selector" -}}
app.kubernetes.io/name: gpupilot
app.kubernetes.io/component: controller
{{- end }}

{{/* The repository of a dict with image and root. global.imageRegistry replaces its registry. */}}
{{- define "gpupilot.repository" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- if and (gt (len $parts) 1) (regexMatch "[.:]|^localhost$" (first $parts)) }}{{ $parts = rest $parts }}{{ end -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (join "/" $parts) -}}
{{- end -}}
{{ $repository }}
{{- end }}

{{/* IMAGE of a dict with image and root. */}}
{{- define "gpupilot.image" -}}
{{- $repository := include "gpupilot.repository" . -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The ConfigMap with the rules of prometheus-adapter; empty: there are none. */}}
{{- define "gpupilot.adapterConfig" -}}
{{- with .Values.rules -}}
{{- if or .custom .external }}gpupilot-adapter{{ else }}{{ .existing }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The names of the page outside of the cluster, as a YAML list. */}}
{{- define "gpupilot.publicHosts" -}}
{{- $hosts := list -}}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end -}}
{{- if .Values.httpRoute.enabled }}{{ $hosts = concat $hosts .Values.httpRoute.hostnames }}{{ end -}}
{{ toYaml (uniq $hosts) }}
{{- end }}

{{/* The bytes of a quantity such as 512Mi. */}}
{{- define "gpupilot.bytes" -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $factors := dict "" 1 "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $factors $unit | default 0 | float64) | int64 -}}
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
{{- $account := $root.Values.serviceAccount }}
{{- $text := toString $content | replace "ServiceAccount, name: gpupilot-controller," (printf "ServiceAccount, name: %s," $account.name) }}
{{- $text = $text | replace ":gpupilot-system:gpupilot-controller'" (printf ":gpupilot-system:%s'" $account.name) }}
{{- range ($text | replace "gpupilot-system" $root.Release.Namespace | splitList "\n---\n") }}
{{- $object := fromYaml . }}
{{- if and $object.kind (not (has (printf "%s/%s" $object.kind $object.metadata.name) $skip)) }}
{{- if and (eq $object.kind "ServiceAccount") (eq $object.metadata.name "gpupilot-controller") }}
{{- $_ := set $object.metadata "name" $account.name }}
{{- with $account.annotations }}{{ $_ := set $object.metadata "annotations" . }}{{ end }}
{{- end }}
{{- if and (eq $object.kind "ClusterRole") (not $root.Values.rbac.aggregateToDefaultRoles) }}
{{- $_ := set $object.metadata "labels" (omit ($object.metadata.labels | default dict) "rbac.authorization.k8s.io/aggregate-to-view" "rbac.authorization.k8s.io/aggregate-to-edit") }}
{{- end }}
{{- if and (eq $object.kind "ValidatingAdmissionPolicy") (has $object.metadata.name (list "gpupilot-controller-daemonsets" "gpupilot-controller-exporter-objects")) }}
{{- include "gpupilot.agentLimits" (dict "root" $root "policy" $object) }}
{{- end }}
{{- $_ := set $object.metadata "labels" (merge (dict) $labels ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The spec of the GPUExporter of the values. The controller's --agent-image is the image, unless spec.image is set: agents
follow the controller's version.
*/}}
{{- define "gpupilot.exporterSpec" -}}
{{- $spec := dict "imagePullPolicy" .Values.gpuExporter.image.pullPolicy -}}
{{- with .Values.imagePullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- $tokens := eq .Values.agents.auth "token" -}}
{{- with .Values.serviceMonitor -}}
{{- if .enabled -}}
{{- $monitor := dict "interval" .interval "scrapeTimeout" .scrapeTimeout -}}
{{- with .additionalLabels }}{{ $_ := set $monitor "labels" . }}{{ end -}}
{{- with .metricRelabelings }}{{ $_ := set $monitor "metricRelabelings" . }}{{ end -}}
{{- $endpoint := dict -}}
{{- with .relabelings }}{{ $_ := set $endpoint "relabelings" . }}{{ end -}}
{{- with .tlsConfig }}{{ $_ := set $endpoint "tlsConfig" . }}{{ end -}}
{{- if and .authorization $tokens }}{{ $_ := set $endpoint "authorization" .authorization }}{{ end -}}
{{- with $endpoint }}{{ $_ := set $monitor "endpoint" . }}{{ end -}}
{{- $_ := set $spec "monitoring" (dict "serviceMonitor" $monitor) -}}
{{- end -}}
{{- end -}}
{{- /* Whole fields, not merged: a podMonitor excludes a serviceMonitor. */ -}}
{{- range $key, $value := .Values.gpuExporter.spec }}{{ $_ := set $spec $key $value }}{{ end -}}
{{ toYaml $spec }}
{{- end }}

{{/*
Extends the variables of the policy of a dict with root and policy by what the values name: the GPUExporter of the values
passes the policies.
*/}}
{{- define "gpupilot.agentLimits" -}}
{{- $limits := .root.Values.admissionPolicies -}}
{{- $spec := include "gpupilot.exporterSpec" .root | fromYaml -}}
{{- $more := dict "images" (append $limits.agentImages (include "gpupilot.repository" (dict "image" .root.Values.gpuExporter.image "root" .root))) "hostPaths" $limits.agentHostPaths
  "secrets" $limits.agentSecrets "podMetadata" (concat $limits.agentPodMetadata (keys ($spec.podLabels | default dict) | sortAlpha) (keys ($spec.podAnnotations | default dict) | sortAlpha))
  "args" ($spec.args | default list) "env" list -}}
{{- with $spec.image }}{{ $_ := set $more "images" (append $more.images .) }}{{ end -}}
{{- with $spec.driver }}{{ $_ := set $more "hostPaths" (append $more.hostPaths .root) }}{{ end -}}
{{- with dig "kubernetes" "kubeletPath" "" $spec }}{{ $_ := set $more "hostPaths" (append $more.hostPaths (clean (printf "%s/pod-resources" .))) }}{{ end -}}
{{- if eq .root.Values.agents.auth "token" }}{{ $_ := set $more "tokenFiles" (list "/var/run/secrets/kubernetes.io/serviceaccount/token") }}{{ end -}}
{{- range $spec.env }}{{ $_ := set $more "env" (append $more.env .name) }}{{ end -}}
{{- $secrets := list (dig "web" "secretName" "" $spec) -}}
{{- range $monitor := list "serviceMonitor" "podMonitor" -}}
{{- $endpoint := dig "monitoring" $monitor "endpoint" dict $spec -}}
{{- $secrets = concat $secrets (list (dig "basicAuth" "username" "name" "" $endpoint) (dig "basicAuth" "password" "name" "" $endpoint) (dig "authorization" "credentials" "name" "" $endpoint)
  (dig "tlsConfig" "ca" "secret" "name" "" $endpoint) (dig "tlsConfig" "cert" "secret" "name" "" $endpoint) (dig "tlsConfig" "keySecret" "name" "" $endpoint)) -}}
{{- end -}}
{{- $_ := set $more "secrets" (concat $more.secrets (compact $secrets | uniq)) -}}
{{- range .policy.spec.variables -}}
{{- $added := get $more .name | default list -}}
{{- if $added }}{{ $_ := set . "expression" (printf "%s + %s" .expression (toJson $added)) }}{{ end -}}
{{- if and (eq .name "privileged") $spec.privileged }}{{ $_ := set . "expression" "true" }}{{ end -}}
{{- end -}}
{{- end }}
