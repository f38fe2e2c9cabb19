{{- define "otel-llm.fullname" -}}
{{- if contains "otel-llm" .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-otel-llm" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "otel-llm.selector" -}}
app.kubernetes.io/name: otel-llm
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "otel-llm.labels" -}}
{{ include "otel-llm.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "otel-llm.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end -}}

{{/* The settings file. JSON is YAML too, and does not write large integers as floating-point numbers. */}}
{{- define "otel-llm.settings" -}}
{{- $settings := dict "version" 1
      "metrics" (dict "instance_label" true "instances" .instances)
      "auth" (dict "tokens_file" "/etc/otel-llm/auth/tokens.txt") -}}
{{- if eq .component "relay" -}}
{{- $_ := set $settings "operators" (dict "tokens_file" "/etc/otel-llm/auth/operators.txt") -}}
{{- end -}}
{{- if .tls -}}
{{- $_ := set $settings "tls" (dict "certificate" "/etc/otel-llm/tls/tls.crt" "key" "/etc/otel-llm/tls/tls.key" "web" "server") -}}
{{- end -}}
{{- $merged := mergeOverwrite $settings (deepCopy .settings) -}}
{{- $_ := set $merged "web" (dict "hosts" (concat .hosts (dig "web" "hosts" (list) .settings) | uniq)) -}}
{{ $merged | toPrettyJson }}
{{- end -}}

{{- define "otel-llm.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "otel-llm.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end -}}

{{/* A restart answers /healthz at once, and /readyz when it has read its journal. Both need no token. */}}
{{- define "otel-llm.probes" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (not (empty .tls)) -}}
startupProbe:
  httpGet: {path: /healthz, port: web, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: web, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: web, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- define "otel-llm.mounts" -}}
- {name: config, mountPath: /etc/otel-llm/config, readOnly: true}
- {name: auth, mountPath: /etc/otel-llm/auth, readOnly: true}
{{- if .tls }}
- {name: tls, mountPath: /etc/otel-llm/tls, readOnly: true}
{{- end }}
{{- range $at, $name := .secrets }}
- {name: secret-{{ $at }}, mountPath: /etc/otel-llm/secrets/{{ $name }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "otel-llm.volumes" -}}
- name: config
  configMap:
    name: {{ .name }}
    items:
    - {key: settings.yaml, path: settings.yaml}
    {{- if .slo }}
    - {key: slo.yaml, path: slo.yaml}
    {{- end }}
    {{- range $name, $_ := .rules }}
    - {key: "rules.{{ $name }}.yaml", path: "rules/{{ $name }}.yaml"}
    {{- end }}
- name: auth
  secret: {secretName: {{ .auth }}, defaultMode: 0440}
{{- if .tls }}
- name: tls
  secret: {secretName: {{ .tls }}, defaultMode: 0440}
{{- end }}
{{- /* By number: a secret's name may be longer than a volume's, and have dots. */}}
{{- range $at, $name := .secrets }}
- name: secret-{{ $at }}
  secret: {secretName: {{ $name }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* `|2`: the text of a file may begin with an indented line. */}}
{{- define "otel-llm.configData" -}}
settings.yaml: |
  {{- include "otel-llm.settings" . | nindent 2 }}
{{- if .slo }}
slo.yaml: |2
  {{- .slo | nindent 2 }}
{{- end }}
{{- range $name, $text := .rules }}
rules.{{ $name }}.yaml: |2
  {{- $text | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "otel-llm.fileArgs" -}}
- --config=/etc/otel-llm/config/settings.yaml
{{- if .slo }}
- --slo=/etc/otel-llm/config/slo.yaml
{{- end }}
{{- if .rules }}
- --rules=/etc/otel-llm/config/rules
{{- end }}
{{- end -}}

{{/* The names of a Service in the cluster, under which its web port may be asked for. */}}
{{- define "otel-llm.serviceNames" -}}
{{- list .name (printf "%s.%s" .name .namespace) (printf "%s.%s.svc" .name .namespace) (printf "%s.%s.svc.cluster.local" .name .namespace) | toJson -}}
{{- end -}}

{{/* What differs between the two parts: the arguments of the templates above. */}}
{{- define "otel-llm.collector" -}}
{{- $backends := dict -}}
{{- if .Values.relay.enabled -}}{{- $backends = .Values.relay.settings.backends -}}{{- end -}}
{{- $name := printf "%s-collector" (include "otel-llm.fullname" .) -}}
{{- $hosts := include "otel-llm.serviceNames" (dict "name" $name "namespace" .Release.Namespace) | fromJsonArray -}}
{{- range until (int .Values.collector.replicas) -}}
{{- $hosts = concat $hosts (include "otel-llm.serviceNames" (dict "name" (printf "%s-%d.%s" $name . $name) "namespace" $.Release.Namespace) | fromJsonArray) -}}
{{- end -}}
{{- dict "component" "collector" "name" $name "hosts" $hosts
      "settings" .Values.collector.settings "instances" (concat .Values.instances (keys $backends | sortAlpha) | uniq)
      "slo" .Values.slo "rules" .Values.collector.rules "secrets" .Values.collector.secrets
      "auth" .Values.auth.secret "tls" .Values.tls.secret | toJson -}}
{{- end -}}

{{/* The collectors, as OTEL_LLM_ENDPOINTS lists them. */}}
{{- define "otel-llm.endpoints" -}}
{{- $name := (include "otel-llm.collector" . | fromJson).name -}}
{{- $urls := list -}}
{{- range until (int .Values.collector.replicas) -}}
{{- $urls = append $urls (printf "%s://%s-%d.%s.%s.svc:4317" (ternary "https" "http" (not (empty $.Values.tls.secret))) $name . $name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{- define "otel-llm.relay" -}}
{{- $name := printf "%s-relay" (include "otel-llm.fullname" .) -}}
{{- dict "component" "relay" "name" $name
      "hosts" (include "otel-llm.serviceNames" (dict "name" $name "namespace" .Release.Namespace) | fromJsonArray)
      "settings" .Values.relay.settings "instances" (keys .Values.relay.settings.backends | sortAlpha)
      "slo" .Values.slo "rules" .Values.relay.rules "secrets" .Values.relay.secrets
      "auth" .Values.relay.auth.secret "tls" .Values.relay.tls.secret | toJson -}}
{{- end -}}

{{/* Egress beside the listed rules: names. */}}
{{- define "otel-llm.dns" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end -}}

{{- define "otel-llm.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
