{{- define "kafkawire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kafkawire.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kafkawire.labels" -}}
{{ include "kafkawire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kafkawire.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kafkawire.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kafkawire.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "kafkawire.host" -}}
{{ include "kafkawire.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "kafkawire.address" -}}
{{ include "kafkawire.host" . }}:{{ .Values.service.port }}
{{- end -}}

{{- define "kafkawire.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Refuse values that the schema cannot: combinations that are not safe, or do not work. */}}
{{- define "kafkawire.check" -}}
{{- if .Values.insecure -}}
{{- if .Values.tls.existingSecret -}}
{{- fail "insecure=true and tls.existingSecret contradict each other: set one of them" -}}
{{- end -}}
{{- else if not .Values.tls.existingSecret -}}
{{- fail "the listeners have no encryption: set tls.existingSecret to a secret of type kubernetes.io/tls, or insecure=true if every client that can connect may do everything (docs/deployment.md)" -}}
{{- else if and .Values.sasl.enabled (not .Values.sasl.existingSecret) -}}
{{- fail "clients have no users: set sasl.existingSecret to a secret with the keys users and client.properties, or sasl.enabled=false if every client that can connect may do everything (docs/deployment.md)" -}}
{{- end -}}
{{- if gt (int .Values.brokers) 1 -}}
{{- $number := int .Values.brokers -}}
{{- if not (and .Values.metadata.existingSecret .Values.tier.url) -}}
{{- fail (printf "brokers=%d: several brokers share a PostgreSQL database and a bucket: set metadata.existingSecret and tier.url" $number) -}}
{{- end -}}
{{- if .Values.external.enabled -}}
{{- fail (printf "brokers=%d: external.enabled has one address, and clients must reach each broker: set it to false" $number) -}}
{{- end -}}
{{- if .Values.metrics.tls.existingSecret -}}
{{- fail (printf "brokers=%d: metrics.tls.existingSecret works with one broker only: leave it empty" $number) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The file with which a client in a pod of this release connects; empty: none is needed. */}}
{{- define "kafkawire.client" -}}
{{- if .Values.tls.existingSecret -}}
{{- ternary "/etc/kafkawire-sasl/client.properties" "/etc/kafkawire/client.properties" .Values.sasl.enabled -}}
{{- end -}}
{{- end -}}

{{- /* Ports of the brokers that a pod takes over; before them are 9092 and its own, 9093. */}}
{{- define "kafkawire.takeover" -}}
9094-{{ add 9092 .Values.brokers }}
{{- end -}}

{{- /* Secrets for TLS and log-ins: where they are mounted. */}}
{{- define "kafkawire.mounts" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/kafkawire-tls
  readOnly: true
{{- if .Values.sasl.enabled }}
- name: sasl
  mountPath: /etc/kafkawire-sasl
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "kafkawire.secrets" -}}
{{- if .Values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    defaultMode: 0440
{{- if .Values.sasl.enabled }}
- name: sasl
  secret:
    secretName: {{ .Values.sasl.existingSecret }}
    # The broker refuses a file that other users can read.
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}
