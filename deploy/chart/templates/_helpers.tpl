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

{{/* The labels of every object, and more, which have precedence: a dict with root and more. */}}
{{- define "gpupilot.labelsAnd" -}}
{{ toYaml (merge (dict) .more (include "gpupilot.labels" .root | fromYaml)) }}
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
Extends the variables of the policy of a dict with root and policy by what the values name: the GPUExporter of the values
passes the policies.
*/}}
{{- define "gpupilot.agentLimits" -}}
{{- $limits := .root.Values.admissionPolicies -}}
{{- $spec := .root.Values.gpuExporter.spec -}}
{{- $more := dict "images" (append $limits.agentImages .root.Values.gpuExporter.image.repository) "hostPaths" $limits.agentHostPaths
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
