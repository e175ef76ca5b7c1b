// One line a concept, one column a language.
const LANGUAGES = ["en", "de", "es", "fr", "tr", "pl", "ru", "el", "ar", "zh", "ja"];
const WORDS = Object.fromEntries(`
menu|Menu|Menü|Menú|Menu|Menü|Menu|Меню|Μενού|القائمة|菜单|メニュー
search|Search|Suche|Buscar|Rechercher|Ara|Szukaj|Поиск|Αναζήτηση|بحث|搜索|検索
home|Home|Start|Inicio|Accueil|Ana sayfa|Strona główna|Главная|Αρχική|الرئيسية|主页|ホーム
settings|Settings|Einstellungen|Ajustes|Paramètres|Ayarlar|Ustawienia|Настройки|Ρυθμίσεις|الإعدادات|设置|設定
user|Profile|Profil|Perfil|Profil|Profil|Profil|Профиль|Προφίλ|الملف الشخصي|个人资料|プロフィール
cart|Cart|Warenkorb|Carrito|Panier|Sepet|Koszyk|Корзина|Καλάθι|السلة|购物车|カート
heart|Like|Gefällt mir|Me gusta|J’aime|Beğen|Lubię to|Нравится|Μου αρέσει|إعجاب|喜欢|いいね
star|Favourite|Favorit|Favorito|Favori|Favori|Ulubione|Избранное|Αγαπημένο|المفضلة|收藏|お気に入り
bell|Alerts|Hinweise|Avisos|Alertes|Uyarılar|Alerty|Уведомления|Ειδοποιήσεις|تنبيهات|通知|通知
mail|Mail|Post|Correo|Courrier|Posta|Poczta|Почта|Αλληλογραφία|البريد|邮件|メール
trash|Delete|Löschen|Eliminar|Supprimer|Sil|Usuń|Удалить|Διαγραφή|حذف|删除|削除
edit|Edit|Bearbeiten|Editar|Modifier|Düzenle|Edytuj|Изменить|Επεξεργασία|تعديل|编辑|編集
add|Add|Hinzufügen|Añadir|Ajouter|Ekle|Dodaj|Добавить|Προσθήκη|إضافة|添加|追加
close|Close|Schließen|Cerrar|Fermer|Kapat|Zamknij|Закрыть|Κλείσιμο|إغلاق|关闭|閉じる
download|Download|Herunterladen|Descargar|Télécharger|İndir|Pobierz|Скачать|Λήψη|تنزيل|下载|ダウンロード
share|Share|Teilen|Compartir|Partager|Paylaş|Udostępnij|Поделиться|Κοινοποίηση|مشاركة|分享|共有
lock|Lock|Sperren|Bloquear|Verrouiller|Kilitle|Zablokuj|Заблокировать|Κλείδωμα|قفل|锁定|ロック
camera|Camera|Kamera|Cámara|Appareil photo|Kamera|Aparat|Камера|Κάμερα|الكاميرا|相机|カメラ
calendar|Calendar|Kalender|Calendario|Calendrier|Takvim|Kalendarz|Календарь|Ημερολόγιο|التقويم|日历|カレンダー
play|Play|Abspielen|Reproducir|Lecture|Oynat|Odtwórz|Воспроизвести|Αναπαραγωγή|تشغيل|播放|再生
pause|Pause|Pause|Pausa|Pause|Duraklat|Wstrzymaj|Пауза|Παύση|إيقاف مؤقت|暂停|一時停止
refresh|Refresh|Aktualisieren|Actualizar|Actualiser|Yenile|Odśwież|Обновить|Ανανέωση|تحديث|刷新|更新
help|Help|Hilfe|Ayuda|Aide|Yardım|Pomoc|Справка|Βοήθεια|مساعدة|帮助|ヘルプ
filter|Filter|Filtern|Filtrar|Filtrer|Filtrele|Filtruj|Фильтр|Φίλτρο|تصفية|筛选|絞り込み
phone|Call|Anrufen|Llamar|Appeler|Telefon et|Zadzwoń|Позвонить|Κλήση|اتصال|通话|通話
map|Map|Karte|Mapa|Carte|Harita|Mapa|Карта|Χάρτης|الخريطة|地图|地図
clock|History|Verlauf|Historial|Historique|Geçmiş|Historia|История|Ιστορικό|السجل|历史|履歴
chat|Chat|Chat|Chat|Discussion|Sohbet|Czat|Чат|Συνομιλία|دردشة|聊天|チャット
color|Colour|Farbe|Color|Couleur|Renk|Kolor|Цвет|Χρώμα|اللون|颜色|色
red|Red|Rot|Rojo|Rouge|Kırmızı|Czerwony|Красный|Κόκκινο|أحمر|红色|赤
orange|Orange|Orange|Naranja|Orange|Turuncu|Pomarańczowy|Оранжевый|Πορτοκαλί|برتقالي|橙色|オレンジ
yellow|Yellow|Gelb|Amarillo|Jaune|Sarı|Żółty|Жёлтый|Κίτρινο|أصفر|黄色|黄
green|Green|Grün|Verde|Vert|Yeşil|Zielony|Зелёный|Πράσινο|أخضر|绿色|緑
blue|Blue|Blau|Azul|Bleu|Mavi|Niebieski|Синий|Μπλε|أزرق|蓝色|青
purple|Purple|Lila|Morado|Violet|Mor|Fioletowy|Фиолетовый|Μωβ|بنفسجي|紫色|紫
save|Save|Speichern|Guardar|Enregistrer|Kaydet|Zapisz|Сохранить|Αποθήκευση|حفظ|保存|保存
cancel|Cancel|Abbrechen|Cancelar|Annuler|İptal|Anuluj|Отмена|Άκυρο|إلغاء|取消|キャンセル
send|Send|Senden|Enviar|Envoyer|Gönder|Wyślij|Отправить|Αποστολή|إرسال|发送|送信
buy|Buy|Kaufen|Comprar|Acheter|Satın al|Kup|Купить|Αγορά|شراء|购买|購入
next|Next|Weiter|Siguiente|Suivant|İleri|Dalej|Далее|Επόμενο|التالي|下一步|次へ
back|Back|Zurück|Atrás|Retour|Geri|Wstecz|Назад|Πίσω|رجوع|返回|戻る
signin|Sign in|Anmelden|Iniciar sesión|Se connecter|Giriş yap|Zaloguj się|Войти|Σύνδεση|تسجيل الدخول|登录|ログイン
register|Create account|Konto anlegen|Crear cuenta|Créer un compte|Hesap oluştur|Utwórz konto|Создать аккаунт|Εγγραφή|إنشاء حساب|注册|登録
name|Name|Name|Nombre|Nom|Ad|Nazwisko|Имя|Όνομα|الاسم|姓名|名前
email|E-mail|E-Mail|Correo electrónico|E-mail|E-posta|E-mail|Эл. почта|Email|البريد الإلكتروني|电子邮箱|メールアドレス
password|Password|Passwort|Contraseña|Mot de passe|Parola|Hasło|Пароль|Κωδικός|كلمة المرور|密码|パスワード
address|Address|Adresse|Dirección|Adresse|Adres|Adres|Адрес|Διεύθυνση|العنوان|地址|住所
city|City|Ort|Ciudad|Ville|Şehir|Miasto|Город|Πόλη|المدينة|城市|市区町村
country|Country|Land|País|Pays|Ülke|Kraj|Страна|Χώρα|الدولة|国家|国
remember|Remember me|Angemeldet bleiben|Recordarme|Se souvenir de moi|Beni hatırla|Zapamiętaj mnie|Запомнить меня|Να με θυμάσαι|تذكرني|记住我|ログインしたままにする
news|Newsletter|Newsletter|Boletín|Infolettre|Bülten|Biuletyn|Рассылка|Ενημερώσεις|النشرة|订阅邮件|メールマガジン
language|Language|Sprache|Idioma|Langue|Dil|Język|Язык|Γλώσσα|اللغة|语言|言語
dark|Dark mode|Dunkles Design|Modo oscuro|Mode sombre|Koyu tema|Tryb ciemny|Тёмная тема|Σκούρο θέμα|الوضع الداكن|深色模式|ダークモード
sound|Sound|Ton|Sonido|Son|Ses|Dźwięk|Звук|Ήχος|الصوت|声音|サウンド
wifi|Wi-Fi|WLAN|Wi-Fi|Wi-Fi|Wi-Fi|Wi-Fi|Wi-Fi|Wi-Fi|واي فاي|无线网络|Wi-Fi
privacy|Privacy|Datenschutz|Privacidad|Confidentialité|Gizlilik|Prywatność|Конфиденциальность|Απόρρητο|الخصوصية|隐私|プライバシー
storage|Storage|Speicher|Almacenamiento|Stockage|Depolama|Pamięć|Хранилище|Χώρος|التخزين|存储空间|ストレージ
updates|Updates|Updates|Actualizaciones|Mises à jour|Güncellemeler|Aktualizacje|Обновления|Ενημερώσεις λογισμικού|التحديثات|系统更新|アップデート
price|Price|Preis|Precio|Prix|Fiyat|Cena|Цена|Τιμή|السعر|价格|価格
status|Status|Status|Estado|État|Durum|Stan|Статус|Κατάσταση|الحالة|状态|状態
date|Date|Datum|Fecha|Date|Tarih|Data|Дата|Ημερομηνία|التاريخ|日期|日付
paid|Paid|Bezahlt|Pagado|Payé|Ödendi|Opłacone|Оплачено|Πληρωμένο|مدفوع|已付|支払済み
open|Open|Offen|Pendiente|En attente|Açık|Otwarte|Открыто|Ανοιχτό|مفتوح|待付|未払い
late|Late|Überfällig|Vencido|En retard|Gecikmiş|Zaległe|Просрочено|Εκπρόθεσμο|متأخر|逾期|延滞
invoices|Invoices|Rechnungen|Facturas|Factures|Faturalar|Faktury|Счета|Τιμολόγια|الفواتير|发票|請求書
files|Files|Dateien|Archivos|Fichiers|Dosyalar|Pliki|Файлы|Αρχεία|الملفات|文件|ファイル
photos|Photos|Fotos|Fotos|Photos|Fotoğraflar|Zdjęcia|Фото|Φωτογραφίες|الصور|照片|写真
music|Music|Musik|Música|Musique|Müzik|Muzyka|Музыка|Μουσική|الموسيقى|音乐|音楽
report|Report|Bericht|Informe|Rapport|Rapor|Raport|Отчёт|Αναφορά|تقرير|报告|レポート
project|Project|Projekt|Proyecto|Projet|Proje|Projekt|Проект|Έργο|مشروع|项目|プロジェクト
budget|Budget|Haushalt|Presupuesto|Budget|Bütçe|Budżet|Бюджет|Προϋπολογισμός|الميزانية|预算|予算
travel|Travel|Reise|Viaje|Voyage|Seyahat|Podróż|Поездка|Ταξίδι|السفر|旅行|旅行計画
contract|Contract|Vertrag|Contrato|Contrat|Sözleşme|Umowa|Договор|Συμβόλαιο|عقد|合同|契約
meeting|Meeting|Besprechung|Reunión|Réunion|Toplantı|Spotkanie|Встреча|Συνάντηση|اجتماع|会议|会議
inbox|Inbox|Eingang|Recibidos|Réception|Gelen kutusu|Odebrane|Входящие|Εισερχόμενα|الوارد|收件箱|受信トレイ
sent|Sent|Gesendet|Enviados|Envoyés|Gönderilenler|Wysłane|Отправленные|Απεσταλμένα|المرسل|已发送|送信済み
drafts|Drafts|Entwürfe|Borradores|Brouillons|Taslaklar|Szkice|Черновики|Πρόχειρα|المسودات|草稿|下書き
sales|Sales|Umsatz|Ventas|Ventes|Satışlar|Sprzedaż|Продажи|Πωλήσεις|المبيعات|销售额|売上
visitors|Visitors|Besucher|Visitantes|Visiteurs|Ziyaretçiler|Odwiedzający|Посетители|Επισκέπτες|الزوار|访客|訪問者
orders|Orders|Bestellungen|Pedidos|Commandes|Siparişler|Zamówienia|Заказы|Παραγγελίες|الطلبات|订单|注文
lamp|Lamp|Lampe|Lámpara|Lampe|Lamba|Lampa|Лампа|Λάμπα|مصباح|台灯|ランプ
chair|Chair|Stuhl|Silla|Chaise|Sandalye|Krzesło|Стул|Καρέκλα|كرسي|椅子|いす
bag|Bag|Tasche|Bolso|Sac|Çanta|Torba|Сумка|Τσάντα|حقيبة|包|バッグ
cup|Cup|Tasse|Taza|Tasse|Fincan|Kubek|Чашка|Κούπα|كوب|杯子|カップ
watch|Watch|Uhr|Reloj|Montre|Saat|Zegarek|Часы|Ρολόι|ساعة|手表|腕時計
book|Book|Buch|Libro|Livre|Kitap|Książka|Книга|Βιβλίο|كتاب|书|本
deletewhat|Delete this file?|Diese Datei löschen?|¿Eliminar este archivo?|Supprimer ce fichier ?|Bu dosya silinsin mi?|Usunąć ten plik?|Удалить этот файл?|Διαγραφή του αρχείου;|هل تريد حذف الملف؟|删除此文件？|このファイルを削除しますか？
leavewhat|Save your changes?|Änderungen speichern?|¿Guardar los cambios?|Enregistrer les modifications ?|Değişiklikler kaydedilsin mi?|Zapisać zmiany?|Сохранить изменения?|Αποθήκευση αλλαγών;|هل تريد حفظ التغييرات؟|保存更改？|変更を保存しますか？
people|Amy Cole,Ben Wood,Dan Hill|Jana Vogt,Uwe Lang,Ina Kurz|Ana Ruiz,Luis Vega,Eva Gil|Léa Roux,Paul Petit,Zoé Blanc|Ece Kaya,Can Demir,Naz Aydın|Ola Lis,Jan Mazur,Ewa Kot|Анна Лис,Олег Ким,Вера Соль|Άννα Λύρα,Νίκος Ρήγας,Εύα Μελά|ليلى حسن,عمر سالم,هدى نور|李娜,王伟,陈静|佐藤葵,鈴木蓮,高橋結
`.trim().split("\n").map((line) => line.split("|")).map(([concept, ...words]) =>
  [concept, Object.fromEntries(LANGUAGES.map((language, i) => [language, words[i]]))]));
